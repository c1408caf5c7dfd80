"""Outputs of the engine for a request: deltas, their sum, and their counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from quire.core.outputs import RequestOutput
from quire.llm.outputs.token_origins import DRAWN, FORCED
from quire.protocol.generation import CompletionTokensDetails, Usage, usage
from quire.server.generation.prompts.tool_use import AnswerReading

#: ``(prompt index, delta)`` of a request's prompts, as they grow.
Outputs: TypeAlias = AsyncGenerator[tuple[int, RequestOutput], None]


async def collect(outputs: Outputs) -> list[RequestOutput]:
    """Wait for the end; return the whole output of each prompt."""
    whole: dict[int, RequestOutput] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            if index in whole:
                whole[index].merge(output)
            else:
                whole[index] = output
    return [whole[index] for index in sorted(whole)]


@dataclass(slots=True)
class ProposedTokens:
    """Tokens that were proposed ahead of the model, by whether they held."""

    accepted: int = 0
    rejected: int = 0

    def add(self, origins: list[str], rejected: int) -> None:
        """Count those of a delta."""
        self.accepted += sum(origin not in (DRAWN, FORCED) for origin in origins)
        self.rejected += rejected


class Tally:
    """Token counts of an answer.

    Args:
        reading: The rules by which the answer is read, where reasoning tokens are counted.
    """

    def __init__(self, reading: AnswerReading | None = None) -> None:
        self._reading = reading
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._answers: defaultdict[int, list[int]] = defaultdict(list)
        self._completion_tokens = 0
        self._proposed: ProposedTokens | None = None

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count a delta of a prompt."""
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self._cached_tokens[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self._completion_tokens += len(completion.token_ids)
            if completion.token_origins is not None:
                self._proposed = self._proposed or ProposedTokens()
                self._proposed.add(completion.token_origins, completion.num_rejected_tokens)
            if self._reading is not None:
                self._answers[completion.index] += completion.token_ids

    def usage(self, *, ended: bool = False) -> Usage:
        """Return the sums; reasoning tokens are counted once ``ended``."""
        sums = usage(
            sum(self._prompt_tokens.values()),
            self._completion_tokens,
            sum(self._cached_tokens.values()),
        )
        reasoning_tokens = None
        if ended and self._reading is not None:
            reasoning_tokens = self._reading.count_reasoning_tokens(self._answers.values())
        if reasoning_tokens is not None or self._proposed is not None:
            details = CompletionTokensDetails(reasoning_tokens or 0)
            if self._proposed is not None:
                details.accepted_prediction_tokens = self._proposed.accepted
                details.rejected_prediction_tokens = self._proposed.rejected
            sums.completion_tokens_details = details
        return sums

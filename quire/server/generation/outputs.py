"""What the engine yields for a request: deltas, their sum, and their counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from quire.core.outputs import RequestOutput
from quire.protocol.generation import CompletionTokensDetails, Usage, usage
from quire.server.generation.tool_use import AnswerReading

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


class Tally:
    """Token counts of an answer.

    Args:
        reading: How it is read, where reasoning is looked for.
    """

    def __init__(self, reading: AnswerReading | None = None) -> None:
        self._reading = reading
        self._prompt_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._answers: defaultdict[int, list[int]] = defaultdict(list)
        self._completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count a delta of a prompt."""
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self._cached_tokens[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self._completion_tokens += len(completion.token_ids)
            if self._reading is not None:
                self._answers[completion.index] += completion.token_ids

    def usage(self, *, ended: bool = False) -> Usage:
        """Return the sums; that of reasoning tokens when all has been added."""
        sums = usage(
            sum(self._prompt_tokens.values()),
            self._completion_tokens,
            sum(self._cached_tokens.values()),
        )
        if ended and self._reading is not None:
            reasoning_tokens = self._reading.count_reasoning_tokens(self._answers.values())
            if reasoning_tokens is not None:
                sums.completion_tokens_details = CompletionTokensDetails(reasoning_tokens)
        return sums

"""What the engine yields for a request: deltas, their sum, and their counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias

from quire.core.outputs import RequestOutput
from quire.protocol.generation import CompletionTokensDetails, Usage, usage

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
class Tally:
    """Token counts of an answer, by prompt; of the reasoning at the end, when it is looked for."""

    prompt_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    completion_tokens: int = 0
    reasoning_tokens: int | None = None

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count a delta of a prompt."""
        self.prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self.cached_tokens[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)

    def usage(self) -> Usage:
        """Return the sums."""
        sums = usage(
            sum(self.prompt_tokens.values()),
            self.completion_tokens,
            sum(self.cached_tokens.values()),
        )
        if self.reasoning_tokens is not None:
            sums.completion_tokens_details = CompletionTokensDetails(self.reasoning_tokens)
        return sums


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Whether usage closes a stream, and whether every chunk carries it."""

    at_end: bool
    on_every_chunk: bool

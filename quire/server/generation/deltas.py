"""What is new in an output since it was last sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.generation import CompletionTokensDetails, Usage, usage


@dataclass(slots=True)
class Delta:
    """The news of one choice.

    Attributes:
        text: New text; may be empty while a character or a stop string is incomplete.
        token_ids: New tokens.
        logprobs: Their log-probabilities, when asked for.
    """

    text: str
    token_ids: list[int]
    logprobs: list[Any]


@dataclass(slots=True)
class Sent:
    """How much of one choice the client has."""

    num_characters: int = 0
    num_tokens: int = 0
    finished: bool = False

    def take(self, completion: CompletionOutput) -> Delta:
        """Return what ``completion`` has beyond this, and move up to it."""
        start = self.num_tokens
        delta = Delta(
            completion.text[self.num_characters :],
            completion.token_ids[start:],
            [] if completion.logprobs is None else completion.logprobs[start:],
        )
        self.num_characters = len(completion.text)
        self.num_tokens = len(completion.token_ids)
        self.finished = completion.finish_reason is not None
        return delta


@dataclass(slots=True)
class Tally:
    """Token counts of an answer, by prompt; of the reasoning at the end, when it is looked for."""

    prompt_tokens: dict[int, int] = field(default_factory=dict)
    completion_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    reasoning_tokens: int | None = None

    def count(self, prompt_index: int, output: RequestOutput) -> None:
        """Take over the counts of a prompt's newest output."""
        self.prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self.completion_tokens[prompt_index] = sum(len(c.token_ids) for c in output.outputs)
        self.cached_tokens[prompt_index] = output.num_cached_tokens

    def usage(self) -> Usage:
        """Return the sums."""
        sums = usage(
            sum(self.prompt_tokens.values()),
            sum(self.completion_tokens.values()),
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


def json_text(text: str) -> bytes:
    """Return ``text`` as JSON."""
    return msgspec.json.encode(text)

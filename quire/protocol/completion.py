"""``POST /v1/completions`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.errors import RequestError
from quire.protocol.generation import Count, GenerationRequest, TokenId, Usage

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024


class CompletionRequest(GenerationRequest, kw_only=True):
    """The request; see docs/server.md for each field."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: int | UnsetType | None = UNSET
    logprobs: Count | None = None
    echo: bool | None = None

    def check(self) -> None:
        """Refuse what no single field shows; see :meth:`GenerationRequest.check`."""
        GenerationRequest.check(self)
        if self.max_tokens == 0 and not self.echo:
            raise RequestError(
                "[max_tokens] must be at least 1 (0 only with echo); got 0.", "max_tokens"
            )

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as text or token ids.

        Raises:
            RequestError: None at all, too many, or a list of mixed kinds.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if len(kinds) > 1:
            raise RequestError(
                "[prompt] must be a list of one kind: texts, token ids or lists of token ids; "
                f"got {', '.join(sorted(kind.__name__ for kind in kinds))}.",
                "prompt",
            )
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item]
        if not 1 <= len(self.prompt) <= MAX_PROMPTS:
            raise RequestError(
                f"[prompt] must hold 1 to {MAX_PROMPTS} prompts; got {len(self.prompt)}.", "prompt"
            )
        return self.prompt  # type: ignore[return-value]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token in each list; ``text_offset`` counts characters from the text's start."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the ``n`` texts of one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer when it is not streamed."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage

"""``POST /v1/completions`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.errors import RequestError
from quire.protocol.generation import Count, GenerationRequest, Usage
from quire.protocol.prompt_list import PromptField, read_prompts
from quire.protocol.request_fields import REFUSED

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest, kw_only=True):
    """The request; see docs/server.md for each field."""

    refused = REFUSED | {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "include_reasoning": (True,),
        "suffix": ("",),
        "prompt_embeds": (),
        "add_generation_prompt": (),
        "continue_final_message": (False,),
        "chat_template_kwargs": ({},),
        "reasoning_effort": (),
        "enable_thinking": (False,),
        "thinking": (False, {"type": "disabled"}),
        "reasoning": ({},),
    }

    prompt: PromptField
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
        """Return the prompts; see :func:`quire.protocol.prompt_list.read_prompts`."""
        return read_prompts(self.prompt, "prompt")


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
    token_origins: list[str] | UnsetType = UNSET
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

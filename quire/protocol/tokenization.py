"""``POST /tokenize`` and ``POST /detokenize`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.protocol.chat_completion import Message
from quire.protocol.generation import TokenId
from quire.protocol.tools import Tool


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either ``prompt`` or ``messages``; the latter is rendered by the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """``tokens`` are ids; ``token_strs`` their texts when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text."""

    tokens: list[TokenId]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text."""

    prompt: str

"""``POST /tokenize`` and ``POST /detokenize`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.protocol.generation import TokenId
from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import Tool


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """One of ``prompt``, ``messages`` and ``content``.

    Messages are rendered by the chat template. ``content`` is llama-server's shape of the route,
    with ``add_special`` (off), ``parse_special`` and ``with_pieces``.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """``tokens`` are ids; ``token_strs`` their texts when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenPiece(msgspec.Struct, kw_only=True):
    """A token: its id, and its text, or its bytes when they are not whole characters."""

    id: int
    piece: str | list[int]


class ContentTokens(msgspec.Struct, kw_only=True):
    """llama-server's answer: ids, or pieces when asked for."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text."""

    tokens: list[TokenId]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text, under vLLM's name and llama-server's."""

    prompt: str
    content: str

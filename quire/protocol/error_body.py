"""The error bodies: OpenAI's, Anthropic's, and the one of servers whose errors are a text."""

from __future__ import annotations

from typing import Literal

import msgspec


class ErrorDetail(msgspec.Struct, kw_only=True):
    """A description of the error; ``param`` is the offending field, ``code`` the HTTP status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    """``{"error": {...}}``."""

    error: ErrorDetail


class FlatErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``{"error": "..."}`` as Ollama, TGI and Triton have it, and next to it what OpenAI's says.

    ``error_type`` is TGI's kind of error, where it has one.
    """

    error: str
    error_type: str | None = None
    type: str
    param: str | None = None
    code: int


class AnthropicErrorDetail(msgspec.Struct, omit_defaults=True):
    """A description of the error; ``details`` tell the client what it may do instead."""

    type: str
    message: str
    details: dict[str, str] | None = None


class AnthropicErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``{"type": "error", "error": {...}}``; an event has no ``request_id``."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None = None

"""The error body every route answers with."""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong; ``param`` is the offending field, ``code`` the HTTP status."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    """``{"error": {...}}``."""

    error: ErrorDetail

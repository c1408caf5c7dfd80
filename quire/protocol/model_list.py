"""``GET /v1/models`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """A name that requests may use as ``model``; ``parent`` is set for adapters."""

    id: str
    created: int
    root: str
    max_model_len: int
    parent: str | None = None
    object: str = "model"
    owned_by: str = "quire"
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """All served names."""

    data: list[ModelCard]
    object: str = "list"

"""``GET /v1/models`` on the wire."""

from __future__ import annotations

from typing import Any

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """A name that requests may use as ``model``; ``parent`` is set for adapters.

    Of a model that is not loaded ``max_model_len`` is what it was made for; its memory may hold
    less.
    """

    id: str
    object: str = "model"
    created: int
    root: str
    max_model_len: int | None
    capabilities: list[str]
    state: str
    parent: str | None = None
    owned_by: str = "quire"
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """All served names."""

    object: str = "list"
    data: list[ModelCard]

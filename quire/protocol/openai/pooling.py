"""``POST /pooling`` on the wire, as vLLM has it."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.protocol.openai.embedding import EmbeddingRequest, EmbeddingUsage


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """The request: that of an embedding, and what is asked for.

    Attributes:
        task: A vector (``embed``) or the probabilities of classes; by default classes where the
            model has them.
    """

    task: Literal["embed", "classify"] | None = None


class Pooled(msgspec.Struct, kw_only=True):
    """One input's values; base64 holds float32, little-endian."""

    index: int
    data: list[float] | str
    object: Literal["pooling"] = "pooling"


class PoolingResponse(msgspec.Struct, kw_only=True):
    """The answer, inputs in their order."""

    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"

"""``POST /v1/embeddings`` on the wire."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.protocol.generation import CacheSalt, Priority
from quire.protocol.prompt_list import PromptField
from quire.protocol.request_body import RequestBody


class EmbeddingRequest(RequestBody, kw_only=True):
    """The request; ``input`` is a text, a list of texts, token ids, or a list of such lists.

    Attributes:
        normalize, use_activation: Whether vectors have length 1; the checkpoint decides.
    """

    refused = {
        "messages": (),
        "truncate_prompt_tokens": (),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }
    sent_names = {"prompt": "input"}

    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """One input's vector; base64 holds its float32, little-endian."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    """The answer, inputs in their order."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"

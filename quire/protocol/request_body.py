"""Fields that the bodies of all requests to the engine share; not what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

# In Python, `$` alone would let a newline pass.
RequestId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$(?!\n)")]
Timeout = Annotated[float, msgspec.Meta(gt=0)]
StreamInterval = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class RequestBody(msgspec.Struct, kw_only=True):
    """Fields of every body; None (JSON null or absent) means the default.

    Attributes:
        refused: Fields known elsewhere that are not supported here, by path, with their neutral
            values.
        sent_names: Names that the engine's errors use, and the fields that they mean.
    """

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    sent_names: ClassVar[Mapping[str, str]] = {}

    model: str | None = None
    request_id: RequestId | None = None
    timeout: Timeout | None = None

    @property
    def constraint_field(self) -> str | None:
        """The field that says what the output must look like; None when none does."""
        return None

    def efforts(self) -> list[tuple[str, str | bool]]:
        """Return the fields that say how much to think, or whether, each with its value."""
        return []

    def without_effect(self) -> list[str]:
        """Return the paths of known fields that do nothing, whatever the model."""
        return []


class StreamableBody(RequestBody, kw_only=True):
    """Fields of a body whose answer may be streamed."""

    rid: RequestId | None = None
    stream: bool | None = None
    stream_interval: StreamInterval | None = None

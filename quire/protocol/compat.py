"""Conversion of other servers' requests into our own, as far as their APIs share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quire.core.errors import RequestError
from quire.core.quoting import quoted
from quire.protocol.generation import Count, Seed
from quire.protocol.request_body import StreamableBody


class CompatRequest(StreamableBody, kw_only=True):
    """A request in another server's shape; ``timeout`` and the ids are ours, as everywhere."""

    @property
    def asks_to_stream(self) -> bool | None:
        """Whether it asks for a stream; None when it says nothing."""
        return self.stream


class CommonSettings(msgspec.Struct, kw_only=True):
    """Sampling settings that every server has under the same name; None means the default."""

    temperature: float | None = None
    top_k: Count | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None


def shared_fields(values: msgspec.Struct, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``values`` that were given, under our names.

    Args:
        values: The request as it was sent.
        names: Our names by theirs.
    """
    given = {ours: getattr(values, theirs) for theirs, ours in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def refuse(where: str, rule: str, value: Any) -> RequestError:
    """Return the error that says what is wrong with a field."""
    return RequestError(f"[{where}] {rule}; got {quoted(value)}.", where)

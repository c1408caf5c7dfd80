"""What the requests of other servers' APIs have in common: they become one of our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from quire.core.errors import RequestError
from quire.protocol.generation import RequestId, StreamInterval, Timeout


class AdaptedRequest(msgspec.Struct, kw_only=True):
    """A request in another server's shape; ``timeout`` and the ids are ours, as everywhere.

    Attributes:
        refused: Fields, by path, that ask for what is not done here, with their neutral values.
        sent_names: Fields of our own requests, and what they are called here.
    """

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    sent_names: ClassVar[Mapping[str, str]] = {}

    model: str | None = None
    stream: bool | None = None
    stream_interval: StreamInterval | None = None
    request_id: RequestId | None = None
    rid: RequestId | None = None
    timeout: Timeout | None = None

    @property
    def asks_to_stream(self) -> bool | None:
        """What the body says of it; None when it says nothing."""
        return self.stream


def shared_fields(values: msgspec.Struct, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``values`` that were given, under the names that ours have.

    Args:
        values: What was sent.
        names: Our names by theirs.
    """
    given = {ours: getattr(values, theirs) for theirs, ours in names.items()}
    return {name: value for name, value in given.items() if value is not None}


def refuse(where: str, rule: str, value: Any) -> RequestError:
    """Return the error that says what is wrong with a field."""
    return RequestError(f"[{where}] {rule}; got {value!r:.80}.", where)

"""Answers of ``/v1/responses`` kept in memory for later turns; bounded by count and by bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from quire.core.built_types import built
from quire.protocol.chat_completion import Message


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer.

    Attributes:
        body: What ``GET`` returns.
        conversation: The messages up to and with this answer, without instructions, as JSON.
    """

    body: bytes
    conversation: bytes

    @classmethod
    def create(cls, body: bytes, messages: list[Message]) -> StoredResponse:
        """Keep an answer with its conversation."""
        return cls(body, msgspec.json.encode(messages))

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
        return len(self.body) + len(self.conversation)

    def messages(self) -> list[Message]:
        """Return the conversation."""
        return msgspec.json.decode(self.conversation, type=built(list[Message]))


class ResponseStore:
    """The newest answers; each client sees its own only.

    Args:
        max_responses: Answers kept; 0 keeps none.
        max_bytes: Memory for all of them; a larger one is not kept.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything."""
        return self._max_responses > 0 and self._max_bytes > 0

    def put(self, client: str, response_id: str, response: StoredResponse) -> None:
        """Keep an answer of ``client``; what was unused for longest makes room."""
        self._kept[client, response_id] = response
        self.num_bytes += response.num_bytes
        while len(self._kept) > self._max_responses or self.num_bytes > self._max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.num_bytes -= dropped.num_bytes

    def get(self, client: str, response_id: str) -> StoredResponse | None:
        """Return an answer of ``client``, or None when it has no such one (any more)."""
        found = self._kept.get((client, response_id))
        if found is not None:
            self._kept.move_to_end((client, response_id))
        return found

    def delete(self, client: str, response_id: str) -> bool:
        """Forget an answer; return whether it was there."""
        found = self._kept.pop((client, response_id), None)
        if found is not None:
            self.num_bytes -= found.num_bytes
        return found is not None

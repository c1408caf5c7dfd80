"""Answers of ``/v1/responses`` kept in memory for later turns; bounded by count and by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import msgspec

from quire.core.built_types import built
from quire.protocol.openai.chat_completion import Message


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer.

    Attributes:
        body: The body that ``GET`` returns.
        conversation: The messages up to this answer, inclusive, without instructions, as JSON.
        items: The answer's items as JSON, by id.
    """

    body: bytes
    conversation: bytes
    items: Mapping[str, bytes]

    @classmethod
    def create(
        cls, body: bytes, messages: list[Message], items: Sequence[Mapping[str, Any]] = ()
    ) -> StoredResponse:
        """Keep an answer with its conversation."""
        encoded = {item["id"]: msgspec.json.encode(item) for item in items}
        return cls(body, msgspec.json.encode(messages), encoded)

    @property
    def num_bytes(self) -> int:
        """Approximate memory that it takes, in bytes."""
        return len(self.body) + len(self.conversation) + sum(map(len, self.items.values()))

    def messages(self) -> list[Message]:
        """Return the conversation."""
        return msgspec.json.decode(self.conversation, type=built(list[Message]))


@dataclass(slots=True)
class _Kept:
    """Answers of one client, those first that were unused for longest.

    Attributes:
        responses: The answers by id.
        answers: The answer that an item is of, both by their ids.
        num_bytes: Memory of the answers.
    """

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    answers: dict[str, str] = field(default_factory=dict)
    num_bytes: int = 0


class ResponseStore:
    """The newest answers; each client sees its own only, and makes room among its own first.

    Several threads may look items up.

    Args:
        max_responses: Answers kept; 0 keeps none.
        max_bytes: Memory for all of them; a larger one is not kept.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._by_client: dict[str, _Kept] = {}
        self._lock = Lock()
        self._num_responses = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return self._num_responses

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything."""
        return self._max_responses > 0 and self._max_bytes > 0

    def put(self, client: str, response_id: str, response: StoredResponse) -> None:
        """Keep an answer of ``client``.

        The client with most answers makes room, by those that were unused for longest: one that
        keeps answers without end takes none of other clients.
        """
        with self._lock:
            kept = self._by_client.setdefault(client, _Kept())
            kept.responses[response_id] = response
            kept.answers |= dict.fromkeys(response.items, response_id)
            kept.num_bytes += response.num_bytes
            self.num_bytes += response.num_bytes
            self._num_responses += 1
            while self._num_responses > self._max_responses:
                self._drop_oldest(lambda one: len(one.responses))
            while self.num_bytes > self._max_bytes:
                self._drop_oldest(lambda one: one.num_bytes)

    def get(self, client: str, response_id: str) -> StoredResponse | None:
        """Return an answer of ``client``, or None when it has no such one (any more)."""
        with self._lock:
            kept = self._by_client.get(client, _Kept()).responses
            found = kept.get(response_id)
            if found is not None:
                kept.move_to_end(response_id)
        return found

    def item(self, client: str, item_id: str) -> dict[str, Any] | None:
        """Return an item of an answer of ``client``, or None when that is not kept."""
        with self._lock:
            response_id = self._by_client.get(client, _Kept()).answers.get(item_id, "")
        found = self.get(client, response_id)
        return None if found is None else msgspec.json.decode(found.items[item_id])

    def delete(self, client: str, response_id: str) -> bool:
        """Forget an answer; return whether it was there."""
        with self._lock:
            found = response_id in self._by_client.get(client, _Kept()).responses
            if found:
                self._drop(client, response_id)
        return found

    def _drop_oldest(self, share: Callable[[_Kept], int]) -> None:
        client = max(self._by_client, key=lambda name: share(self._by_client[name]))
        self._drop(client, next(iter(self._by_client[client].responses)))

    def _drop(self, client: str, response_id: str) -> None:
        kept = self._by_client[client]
        response = kept.responses.pop(response_id)
        for item_id in response.items:
            kept.answers.pop(item_id, None)
        kept.num_bytes -= response.num_bytes
        self.num_bytes -= response.num_bytes
        self._num_responses -= 1
        if not kept.responses:
            del self._by_client[client]

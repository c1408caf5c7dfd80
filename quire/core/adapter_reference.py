"""An adapter as requests carry it: a name, a place and what its files hold; no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """An adapter that requests may ask for.

    Attributes:
        name: The name that requests give.
        path: The adapter's folder.
        content_hash: Hash of the adapter's files, in hex: equal content, equal KV.
        extra_bytes: Memory that it takes besides low ranks of linears that all rows pass: experts'
            matrices, and those in place of the model's.
    """

    name: str
    path: str
    content_hash: str
    extra_bytes: int = 0

    @property
    def cache_keys(self) -> tuple[str, ...]:
        """The ``extra_keys`` that keep the KV of its requests apart from others'."""
        return (f"adapter:{self.content_hash}",)

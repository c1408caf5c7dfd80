"""An adapter as requests carry it: a name, a place and what its files hold; no tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterReference:
    """An adapter that requests may ask for.

    Attributes:
        name: As requests say it.
        path: Its folder.
        content_hash: Of its files, in hex: equal content, equal KV.
        rank: The largest of its matrices'.
        nbytes: Of its tensors as they are stored.
        whole_bytes: Of them, those of matrices that it brings in place of the model's.
    """

    name: str
    path: str
    content_hash: str
    rank: int
    nbytes: int
    whole_bytes: int = 0

    @property
    def cache_keys(self) -> tuple[str, ...]:
        """The ``extra_keys`` that keep the KV of its requests apart from others'."""
        return (f"adapter:{self.content_hash}",)

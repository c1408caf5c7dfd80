"""The result of a call of a tokenizer, in transformers' shape."""

from __future__ import annotations

from typing import Any


class BatchEncoding(dict[str, Any]):
    """Token ids and masks by name, each an attribute, too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"an encoding has no {name!r}")
        return self[name]

    def to(self, device: Any) -> BatchEncoding:
        """Return the same: the engine takes ids from wherever they are."""
        return self

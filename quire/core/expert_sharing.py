"""Which of several engines that share a model's experts this is; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertSharing:
    """Engines of one model have some of its experts each, and all of the rest.

    Attributes:
        number: Of this engine.
        addresses: Names of the sockets at which engines multiply rows for others, by their numbers.
    """

    number: int
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        """Engines."""
        return len(self.addresses)

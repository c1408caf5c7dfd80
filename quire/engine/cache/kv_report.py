"""The part of the reserved KV memory that holds tokens; pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Slots (one token's place each) of a KV layout.

    Attributes:
        reserved: Slots no other request can use.
        used: Slots that hold a token.
    """

    reserved: int
    used: int

    @property
    def wasted(self) -> int:
        """Reserved slots that hold nothing."""
        return self.reserved - self.used

    @property
    def utilization(self) -> float:
        """Used part of the reserved slots, 0 to 1; 1 when nothing is reserved."""
        return self.used / self.reserved if self.reserved else 1.0

    @property
    def fragmentation(self) -> float:
        """Wasted part of the reserved slots, 0 to 1."""
        return 1.0 - self.utilization

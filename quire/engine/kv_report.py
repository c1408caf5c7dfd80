"""How much of the reserved KV memory holds tokens, paged against static; pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
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


def paged_slot_use(lengths: Iterable[int], block_size: int) -> SlotUse:
    """Return what sequences of these lengths (tokens) take in blocks of ``block_size``."""
    lengths = list(lengths)
    reserved = sum(-(-length // block_size) * block_size for length in lengths)
    return SlotUse(reserved, sum(lengths))


def static_slot_use(lengths: Iterable[int], max_len: int) -> SlotUse:
    """Return what they take when each reserves ``max_len`` slots, as engines without paging do."""
    lengths = list(lengths)
    assert max(lengths, default=0) <= max_len, f"length {max(lengths)} exceeds max_len {max_len}"
    return SlotUse(len(lengths) * max_len, sum(lengths))

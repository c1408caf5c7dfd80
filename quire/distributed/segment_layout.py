"""Places of each group, mailbox and ring of ranks in shared memory; plain numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from quire.kernels.cpu.native import native

#: Bytes of the layout's description after the header, for ranks that have the descriptor alone.
TEXT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """Bytes of a segment's parts.

    Attributes:
        area: Half of a rank's area in a group; longer arrays take several rounds.
        mailbox: Bytes that a rank may send to another before that rank receives; a power of two.
        ring: Bytes of commands that workers have not read yet; a power of two.
    """

    area: int = 512 << 10
    mailbox: int = 1 << 20
    ring: int = 1 << 20


class SegmentLayout:
    """Offsets of each group, mailbox and ring: the same for all ranks.

    Args:
        size: Ranks of the whole.
        groups: World ranks of each group besides the one of all ranks.
        sizes: Bytes of the parts.
        spin: Seconds that a rank spins for another before it sleeps.
    """

    def __init__(
        self,
        size: int,
        groups: Sequence[Sequence[int]] = (),
        sizes: SegmentSizes | None = None,
        spin: float = 0.0,
    ) -> None:
        self.size, self.sizes, self.spin = size, sizes or SegmentSizes(), spin
        self.groups = [list(range(size)), *(list(group) for group in groups)]
        #: End of the header and the description that opens the segment, then of the parts.
        self._end: int = native.shared_segment_header_bytes + TEXT_BYTES
        self.ring = self._place(native.SharedStream.num_bytes(size - 1, self.sizes.ring))
        self.areas: list[int] = []
        self.mailboxes: list[dict[tuple[int, int], int]] = []
        for group in self.groups:
            self.areas.append(
                self._place(native.SharedGroup.num_bytes(len(group), self.sizes.area))
            )
            self.mailboxes.append(
                {
                    (a, b): self._place(native.SharedStream.num_bytes(1, self.sizes.mailbox))
                    for a in range(len(group))
                    for b in range(len(group))
                    if a != b
                }
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole segment, if every page of it were used."""
        return self._end

    def _place(self, num_bytes: int) -> int:
        """Return the offset of a new part, on a page of its own."""
        offset = self._end
        self._end = -(-(offset + num_bytes) // 4096) * 4096
        return offset

    def encode(self) -> bytes:
        """Return the layout as text that :meth:`decode` reads."""
        text = json.dumps([self.size, self.groups[1:], asdict(self.sizes), self.spin]).encode()
        assert len(text) <= TEXT_BYTES, len(text)
        return text.ljust(TEXT_BYTES)

    @classmethod
    def decode(cls, text: bytes) -> SegmentLayout:
        size, groups, sizes, spin = json.loads(text)
        return cls(size, groups, SegmentSizes(**sizes), spin)

"""Memory for KV blocks that another process writes into: a flag for each row, then the rows."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: Rows begin at a page.
_PAGE = 4096


class SharedBlocks:
    """Rows of equal size, mapped by two processes; the memory has no name and ends with both.

    Args:
        descriptor: Descriptor of the memory, which this object owns.
        num_rows, block_bytes: Number of rows, and bytes of each.

    Attributes:
        descriptor: The descriptor given.
        flags: (num_rows,) uint8, 1 when the row is written.
        rows: (num_rows, block_bytes) uint8.
    """

    def __init__(self, descriptor: int, num_rows: int, block_bytes: int) -> None:
        self.descriptor = descriptor
        start = _flag_bytes(num_rows)
        self._map = mmap.mmap(descriptor, start + num_rows * block_bytes)
        self.flags: Bytes = np.frombuffer(self._map, np.uint8, num_rows)
        memory = np.frombuffer(self._map, np.uint8, num_rows * block_bytes, start)
        self.rows: Bytes = memory.reshape(num_rows, block_bytes)

    @classmethod
    def create(cls, num_rows: int, block_bytes: int) -> SharedBlocks:
        """Return new memory; pages take room once they are written to."""
        descriptor = os.memfd_create("quire-kv", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _flag_bytes(num_rows) + num_rows * block_bytes)
        return cls(descriptor, num_rows, block_bytes)

    def close(self) -> None:
        """Unmap the memory and close its descriptor; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            del self.flags, self.rows
            self._map.close()


def _flag_bytes(num_rows: int) -> int:
    return -(-num_rows // _PAGE) * _PAGE

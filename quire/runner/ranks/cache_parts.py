"""Blocks of a KV cache that each rank has a part of: their bytes are those of all ranks in turn.

B blocks. The driver, rank 0, gets the bytes of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.distributed.group import Group
from quire.kernels.backend import Array, KVCache


def gather_blocks(
    own: KVCache, block_ids: Sequence[int], group: Group, part_bytes: Sequence[int]
) -> Array:
    """Return, on rank 0, (B, bytes of all ranks) uint8."""
    # Moved as 32-bit words; nothing is computed with them.
    part = np.ascontiguousarray(own.read_blocks(block_ids)).view(np.float32)
    widths = [size // part.itemsize for size in part_bytes]
    out = np.empty((len(block_ids), sum(widths)), np.float32) if group.rank == 0 else None
    found = group.gather_columns(part, widths, out)
    return None if found is None else found.view(np.uint8)


def own_columns(data: Array, part_bytes: Sequence[int], rank: int) -> Array:
    """Return a rank's part of (B, bytes of all ranks)."""
    first = sum(part_bytes[:rank])
    return data[:, first : first + part_bytes[rank]]


def sum_blocks(own: KVCache, block_ids: Sequence[int], group: Group) -> list[int]:
    """Return, on rank 0, a number for each block that changes with the bytes of any rank."""
    sums = np.array(own.checksums(block_ids), np.uint64).reshape(-1, 1).view(np.float32)
    out = None
    if group.rank == 0:
        out = np.empty((len(block_ids), 2 * group.size), np.float32)
    group.gather_columns(sums, [2] * group.size, out)
    if out is None:
        return []
    return [hash(tuple(ranks)) for ranks in out.view(np.uint64).tolist()]

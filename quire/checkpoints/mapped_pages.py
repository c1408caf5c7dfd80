"""Pages of a mapped file that are resident; what is in the file is its reader's business."""

from __future__ import annotations

import mmap


def release_pages(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Give the pages of bytes ``[begin, end)`` back; reading them maps them again."""
    if hasattr(mmap, "MADV_DONTNEED") and end > begin:
        first = begin - begin % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, end - first)

"""Work on texts that an event loop waits for: short work at once, long work in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: From this many characters on, tokenizing would delay every stream by more than a token's time.
INLINE_CHARACTERS = 4096


async def run_by_size(num_characters: int, work: Callable[[], T]) -> T:
    """Return what ``work`` on that many characters returns."""
    if num_characters < INLINE_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)

"""Work on texts that an event loop waits for: short work at once, long work in threads, in turn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

from quire.system.fair_slots import FairSlots

T = TypeVar("T")

#: From this many characters on, tokenizing would delay every stream by more than a token's time.
INLINE_CHARACTERS = 4096
#: From this many on a text is tokenized by a process of its own: the library's lists of its tokens
#: would hold the interpreter for longer than a stream may wait.
PROCESS_CHARACTERS = 2**19
#: Such processes at once, each of which may take two gigabytes.
MAX_PROCESSES = 2
#: Other long texts at once: the library tokenizes as many as there are cores.
MAX_TEXTS = max(2, min(8, os.cpu_count() or 1))
#: Templates rendered at once: one that takes long is not in the way of other models'.
MAX_TEMPLATES = 4
#: Texts of one client that wait; further ones are sent away.
MAX_WAITING_PER_CLIENT = 4096


class _Threads:
    """Threads of one event loop, which clients share: each has half of them at most."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"quire-{name}")
        self._turns = FairSlots(
            num_threads,
            num_threads // 2,
            MAX_WAITING_PER_CLIENT,
            f"[prompt] at most {MAX_WAITING_PER_CLIENT} texts of one client may wait to be read. "
            "Try again.",
        )

    async def run(self, client_id: str, work: Callable[[], T]) -> T:
        return await self._turns.run(client_id, self._threads, work)


class _Pools:
    """The thread pools of one event loop."""

    def __init__(self) -> None:
        self.texts = _Threads("texts", MAX_TEXTS)
        self.processes = _Threads("text-processes", MAX_PROCESSES)
        self.templates = _Threads("templates", MAX_TEMPLATES)


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pools] = WeakKeyDictionary()


def _own_pools() -> _Pools:
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        _pools[loop] = _Pools()
    return _pools[loop]


async def run_by_size(num_characters: int, client_id: str, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which reads ``num_characters`` characters.

    Args:
        num_characters: Length of the text; below :data:`INLINE_CHARACTERS` ``work`` is called at
            once.
        client_id: The client, since clients take turns.
        work: A function that does the work, in any thread.

    Raises:
        CapacityError: The client has too many texts that wait.
    """
    if num_characters < INLINE_CHARACTERS:
        return work()
    pools = _own_pools()
    threads = pools.texts if num_characters < PROCESS_CHARACTERS else pools.processes
    return await threads.run(client_id, work)


async def run_template(num_characters: int, client_id: str, work: Callable[[], T]) -> T:
    """Return what ``work`` returns, which renders that many characters by a model's template.

    How long a template takes cannot be told from the characters, so short ones have threads of
    their own; the arguments and errors are those of :func:`run_by_size`.
    """
    pools = _own_pools()
    threads = pools.templates if num_characters < INLINE_CHARACTERS else pools.texts
    return await threads.run(client_id, work)

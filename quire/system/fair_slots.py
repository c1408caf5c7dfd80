"""A few places that many clients share in turn; what is done there is the caller's."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from quire.core.errors import CapacityError, EngineDeadError

Result = TypeVar("Result")


class FairSlots:
    """Places for one event loop; each client gets some at once, and the next in turn.

    Args:
        num_places: Number of places.
        max_per_client: Number of places that one client may have at a time, so that others always
            find one soon.
        max_waiting: Number of turns that one client may wait for.
        refusal: Message for a client that waits for more.
    """

    def __init__(
        self, num_places: int, max_per_client: int, max_waiting: int, refusal: str
    ) -> None:
        self._num_free = num_places
        self._max_per_client = max_per_client
        self._max_waiting = max_waiting
        self._refusal = refusal
        self._held: Counter[str] = Counter()
        self._num_waiting: Counter[str] = Counter()
        #: The turns that clients wait for; the client that was served last is the last.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, client_id: str) -> None:
        """Wait for a place; :meth:`give_back` returns it.

        Raises:
            CapacityError: The client waits for too many turns already.
        """
        if self._num_waiting[client_id] >= self._max_waiting:
            raise CapacityError(self._refusal, 1.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_waiting[client_id] += 1
        self._waiting.setdefault(client_id, deque()).append(turn)
        self._serve()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back(client_id)
            raise
        finally:
            _subtract(self._num_waiting, client_id)

    async def run(self, client_id: str, threads: Executor, work: Callable[[], Result]) -> Result:
        """Wait for a place and return what ``work`` returns, which runs in one of ``threads``.

        The place is free when the thread is, also where the caller has left before.

        Raises:
            CapacityError: The client waits for too many turns already.
            EngineDeadError: The threads take no more work.
        """
        await self.take(client_id)
        try:
            running = asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError as error:
            self.give_back(client_id)
            raise EngineDeadError("[engine] it was shut down.") from error
        running.add_done_callback(partial(self._ended, client_id))
        try:
            return await asyncio.shield(running)
        finally:
            # A refusal's traceback holds this frame, and all of the request through it: were the
            # refusal in it, they would stay until the collector of cycles comes.
            del running

    def _ended(self, client_id: str, running: asyncio.Future[Any]) -> None:
        if not running.cancelled():
            running.exception()  # for what waits still
        self.give_back(client_id)

    def give_back(self, client_id: str) -> None:
        """Let the next one have a place."""
        self._num_free += 1
        _subtract(self._held, client_id)
        self._serve()

    def _serve(self) -> None:
        for client_id in list(self._waiting):
            queue = self._waiting[client_id]
            while queue and queue[0].done():  # its caller waits no more
                queue.popleft()
            if queue and self._num_free and self._held[client_id] < self._max_per_client:
                self._num_free -= 1
                self._held[client_id] += 1
                queue.popleft().set_result(None)
                self._waiting.move_to_end(client_id)
            if not queue:
                del self._waiting[client_id]


def _subtract(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]

"""Models that this server fetches for its clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path

from quire.core.errors import CapacityError, ModelLoadError
from quire.server.http.http_errors import ApiError, shutting_down, without_folders
from quire.store.manifests import plain_name
from quire.store.pull_progress import PullCancelled, PullProgress
from quire.store.store import Store

log = logging.getLogger(__name__)

#: Models fetched at once; each has a thread that waits for the network.
MAX_PULLS = 2
#: Pulls under way and waiting; further ones are sent away.
MAX_WAITING = 16
#: Seconds between two steps about the same file that are reported.
STEP_SECONDS = 0.1
#: Seconds after which a request for a model that is being pulled is to be sent again.
RETRY_SECONDS = 5


class _Watched:
    """A pull that continues when no client watches it.

    Args:
        steps: The steps of the pull.

    Attributes:
        task: The task that fetches the model.
    """

    def __init__(self, steps: AsyncGenerator[PullProgress, None]) -> None:
        self._newest: PullProgress | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._run(steps))
        self.task.add_done_callback(self._end)

    async def steps(self) -> AsyncGenerator[PullProgress, None]:
        """Yield the newest step whenever there is one; the rest is as in :meth:`Pulls.steps`."""
        shown = None
        while not self.task.done() or self._newest is not shown:
            changed, newest = self._changed, self._newest
            if newest is not None and newest is not shown:
                yield newest
            shown = newest
            if not self.task.done():
                await changed.wait()
        if self.task.cancelled():
            raise ApiError(409, "The pull was stopped; what came is kept.")
        self.task.result()

    async def _run(self, steps: AsyncGenerator[PullProgress, None]) -> None:
        async with aclosing(steps):
            async for step in steps:
                self._newest = step
                self._notify()

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # clients that watch get it, and it is in the log
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Pulls:
    """Pulls of a server; the bytes of one that was given up are kept for the next.

    One that is begun by :meth:`steps` ends with its client, one of :meth:`watch` does not.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._threads = ThreadPoolExecutor(MAX_PULLS, "quire-pull")
        self._running: dict[object, tuple[str, PullProgress]] = {}
        self._ended = False

    def running(self) -> Mapping[str, PullProgress]:
        """Return the last step of each pull that is under way or waits, by the model's name."""
        return dict(self._running.values())

    def check_absent(self, name: str) -> None:
        """Check that no pull of the model is under way.

        Raises:
            CapacityError: The model is being pulled, and will be there later.
        """
        for pulled, step in self._running.values():
            if _key(pulled) == _key(name):
                known = f" ({step.completed / step.total:.0%} of a file)" if step.total else ""
                raise CapacityError(
                    f"[models] {pulled} is being pulled{known}. Try again.", RETRY_SECONDS
                )

    def end(self) -> None:
        """End all of them, and let none begin; the bytes that arrived are kept."""
        self._ended = True

    def goes_on(self, name: str) -> bool:
        """Return whether a pull of that name is under way that continues without clients."""
        return _key(name) in self._watched

    def watch(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Yield steps as :meth:`steps` does, of a pull that continues without clients.

        A pull of that name that is under way is joined.
        """
        key = _key(name)
        if key not in self._watched:
            self._watched[key] = pull = _Watched(self.steps(name))
            pull.task.add_done_callback(lambda _: self._watched.pop(key))
        return self._watched[key].steps()

    def watch_running(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Yield steps as :meth:`watch` does, but begin no pull.

        Raises:
            ApiError: 404, none of that name is under way.
        """
        if not self.goes_on(name):
            raise ApiError(404, f"No pull of {name} is under way.", param="model")
        return self.watch(name)

    def cancel(self, name: str) -> bool:
        """End a pull that no client ends; return whether there was one."""
        pull = self._watched.get(_key(name))
        return pull is not None and pull.task.cancel()

    async def steps(self, name: str) -> AsyncGenerator[PullProgress, None]:
        """Yield the steps of a pull as they arrive, the last with the status ``success``.

        Raises:
            CapacityError: The limit of concurrent pulls is reached.
            ApiError: 400, the model cannot be pulled; 503, the server is about to end.
        """
        if self._ended:
            raise shutting_down()
        if len(self._running) >= MAX_WAITING:
            raise CapacityError("[pull] too many models are being pulled. Try again.", 10)
        loop, key = asyncio.get_running_loop(), object()
        newest: asyncio.Queue[PullProgress | None] = asyncio.Queue()

        def tell(step: PullProgress) -> None:
            if self._ended or key not in self._running:
                raise PullCancelled("[pull] no client waits for it any more.")
            loop.call_soon_threadsafe(newest.put_nowait, step)

        self._running[key] = name, PullProgress("waiting")
        work = loop.run_in_executor(self._threads, partial(Store().pull, name, None, tell))

        def end(done: asyncio.Future[Path]) -> None:
            if not done.cancelled():
                done.exception()  # a client that has left does not ask for it
            newest.put_nowait(None)

        work.add_done_callback(end)
        try:
            shown, shown_time = "", 0.0
            while (step := await newest.get()) is not None:
                self._running[key] = name, step
                now = loop.time()
                # Bytes come in many steps: one now and then, and one at the end of each file.
                is_end = step.completed >= step.total
                if step.status != shown or is_end or now - shown_time >= STEP_SECONDS:
                    shown, shown_time = step.status, now
                    yield step
            await work
        except PullCancelled:
            raise shutting_down() from None
        except ModelLoadError as error:
            log.warning("[pull] %s: %s", name, error)
            raise ApiError(400, without_folders(str(error))) from error
        except Exception:
            log.exception("[pull] %s failed", name)  # there may be no client that watches
            raise
        finally:
            del self._running[key]
            work.cancel()  # one that still waits for its turn is not begun


def _key(name: str) -> str:
    return plain_name(name).lower()

"""The outputs of live requests on their way from the engine's thread to event loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from quire.core.engine_request import EngineRequest
from quire.core.errors import QuireError, RequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind


class OutputStream:
    """The output of one request that a reader in an event loop has not read yet.

    A slow reader gets the newest output, or the sum of the deltas. So it misses nothing, and the
    engine never waits for it.

    Args:
        loop: The reader's event loop.
        deltas: Whether outputs are deltas.

    Attributes:
        loop: The reader's event loop.
        opened: The time at which it was opened, on the monotonic clock.
        answered: Whether an output has arrived.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deltas: bool) -> None:
        self.loop = loop
        self._deltas = deltas
        self.opened = time.monotonic()
        self.answered = False
        self._unread: RequestOutput | None = None
        self._error: QuireError | None = None
        # Of the one reader that waits; an asyncio.Event takes twice as long for each token.
        self._waiting: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Add an output to the unread one; called in the loop's thread."""
        if self._deltas and self._unread is not None:
            self._unread.merge(output)
        else:
            self._unread = output
        self._wake()

    def fail(self, error: QuireError) -> None:
        """Raise an error in the reader once it has read the output; called in the loop's thread."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """Wait for an unread output; one call at a time.

        Raises:
            QuireError: No output will follow; see :meth:`fail`.
        """
        while self._unread is None:
            if self._error is not None:
                raise self._error
            self._waiting = self.loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        output, self._unread = self._unread, None
        return output

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class OutputStreams:
    """The streams of live requests by id."""

    def __init__(self) -> None:
        self._streams: dict[str, OutputStream] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def __len__(self) -> int:
        return len(self._streams)

    def ids(self) -> list[str]:
        """Return the live requests."""
        return list(self._streams)

    def open(self, request: EngineRequest) -> OutputStream:
        """Add a request's stream, which is read in the running loop.

        Raises:
            RequestError: The id is in use.
        """
        request_id = request.request_id
        if request_id in self._streams:
            raise RequestError(
                f"[request_id] must be unique among live requests; got {request_id!r}. "
                "Choose another.",
                "request_id",
            )
        deltas = request.params.output_kind is RequestOutputKind.DELTA
        stream = OutputStream(asyncio.get_running_loop(), deltas)
        self._streams[request_id] = stream
        return stream

    def close(self, request_id: str) -> None:
        """Forget a stream."""
        del self._streams[request_id]

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand outputs to their readers, one wake-up for each event loop; from any thread."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.answered = True
                by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, batch in by_loop.items():
            _post(loop, lambda batch=batch: _put_all(batch))  # type: ignore[misc]

    def fail(self, request_id: str, error: QuireError) -> None:
        """End a stream with an error; from any thread. Unknown ids are no error."""
        stream = self._streams.get(request_id)
        if stream is not None:
            _post(stream.loop, lambda: stream.fail(error))

    def oldest(self) -> float | None:
        """Return when the oldest live request arrived, or None."""
        return min((s.opened for s in list(self._streams.values())), default=None)

    def oldest_unanswered(self) -> float | None:
        """Return when the oldest request without any output arrived, or None."""
        waiting = [s.opened for s in list(self._streams.values()) if not s.answered]
        return min(waiting, default=None)


def _post(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has been closed, and its readers with it
        loop.call_soon_threadsafe(action)


def _put_all(batch: list[tuple[OutputStream, RequestOutput]]) -> None:
    for stream, output in batch:
        stream.put(output)

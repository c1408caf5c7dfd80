"""The other engines that have experts of this one's model: asked for theirs, and served by ours.

    steps of this engine ─Requests▶ memory of the pair ▶ Results: a thread of the engine asked
                         ◀───────── memory of the pair ◀

A pair of engines has a connection each way. Its end is how either finds out that the other is gone:
who asks no more closes its half, who multiplies no more all of it.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from quire.core.errors import EngineDeadError, RankDeadError
from quire.core.expert_sharing import ExpertSharing
from quire.core.log import get_logger
from quire.core.metrics import Samples
from quire.distributed.local_messages import accept_own_user, peer_is_own_user, receive, send
from quire.distributed.shared_memory_group import SharedMemory
from quire.layers.engine_experts import Floats, Ints, Multiply
from quire.layers.expert_placement import ExpertPlacement
from quire.runner.sharing.expert_requests import (
    ASKER,
    Asker,
    Hello,
    Requests,
    Results,
    create_memory,
    gone,
    read_asker,
    read_hello,
)

log = get_logger(__name__)

#: How long an engine that has loaded waits for another one that has not.
WAIT_SECONDS = 600.0
#: After this time it says whom it waits for.
TELL_SECONDS = 10.0
_RETRY_SECONDS = 0.05
#: How long either may take to say who it is once both are there.
_GREETING_SECONDS = 10.0
#: How long an engine that ends multiplies rows for those that have not ended.
LEAVE_SECONDS = 1.0


class ExpertSiblings:
    """See :class:`quire.layers.engine_experts.Siblings`; the engine's thread uses it.

    Args:
        sharing: The engines, and which this is.
        placement: Which has which experts.
        width: D.

    Attributes:
        failure: Readable once an engine is gone.

    Raises:
        OSError: The address cannot be had.
    """

    def __init__(self, sharing: ExpertSharing, placement: ExpertPlacement, width: int) -> None:
        self.number, self.size = sharing.number, sharing.size
        self._addresses, self._placement, self._width = sharing.addresses, placement, width
        self._layers: list[Multiply] = []
        self._requests: dict[int, Requests] = {}
        self._rows_asked = 0
        self._error: RankDeadError | None = None
        self._loaded, self._is_leaving, self._is_closed = threading.Event(), False, False
        self.failure, self._fail = socket.socketpair()
        self._wake, self._waker = socket.socketpair()
        self._lock = threading.Lock()  # of what follows
        self._rows_served = 0
        self._watched: dict[socket.socket, int] = {}  # engines that are asked
        self._served: dict[socket.socket, Results | None] = {}  # None until both have the memory
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + sharing.addresses[sharing.number])
        self._listener.listen(sharing.size)
        self._watcher = threading.Thread(target=self._watch, name="quire-experts", daemon=True)
        self._watcher.start()

    # -- as siblings ----------------------------------------------------------------------------
    def serve(self, multiply: Multiply) -> int:
        """Multiply rows for the others by a layer's experts; return the layer's number."""
        self._layers.append(multiply)
        return len(self._layers) - 1

    def ask(self, engine: int, layer: int, experts: Ints, x: Floats) -> None:
        """Send rows to an engine; see the protocol."""
        self._rows_asked += len(x)
        try:
            self._requests[engine].ask(layer, experts, x)
        except RankDeadError as error:
            raise self._gone(engine) from error

    def answer(self, engine: int, out: Floats) -> None:
        """Wait for what it makes of them; see the protocol."""
        try:
            self._requests[engine].answer(out)
        except RankDeadError as error:
            raise self._gone(engine) from error

    # -- for whoever loads the engine -----------------------------------------------------------
    def open(self, wait_seconds: float = WAIT_SECONDS) -> None:
        """Serve the others from now on, and return when all of them serve this one.

        Raises:
            EngineDeadError: One did not come.
        """
        self._loaded.set()
        end = time.monotonic() + wait_seconds
        for engine in range(self.size):
            if engine == self.number:
                continue
            connection, requests = self._connect(engine, end, wait_seconds)
            self._requests[engine] = requests
            with self._lock:
                self._watched[connection] = engine
            self._poke()

    def check(self) -> None:
        """Return when all engines are there.

        Raises:
            RankDeadError: One is gone.
        """
        if self._error is not None:
            raise self._error

    def samples(self) -> Samples:
        """Return rows that went from one engine to another, by metric stem."""
        return {
            'shared_expert_rows{way="asked"}': self._rows_asked,
            'shared_expert_rows{way="served"}': self._rows_served,
        }

    def lines(self) -> Sequence[str]:
        """Say which engine has what."""
        return [
            f"engine {engine}{' (this one)' if engine == self.number else ''}: "
            f"{self._experts(engine)}"
            for engine in range(self.size)
        ]

    def close(self) -> None:
        """Ask no more; end when nobody asks this one, or after :data:`LEAVE_SECONDS`."""
        self._is_leaving = True
        self._loaded.set()
        end = time.monotonic() + LEAVE_SECONDS
        with self._lock:
            asked = list(self._watched)
        for connection in asked:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        while self._served and time.monotonic() < end:
            time.sleep(_RETRY_SECONDS)
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._poke()
        self._watcher.join()
        with self._lock:
            served = list(self._served.items())
        for connection, results in served:
            if results is not None:
                results.fail("the engine ends")
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in asked:
            connection.close()
        for requests in self._requests.values():
            requests.close()
        for one in (self._listener, self.failure, self._fail, self._wake, self._waker):
            one.close()

    def _connect(
        self, engine: int, end: float, wait_seconds: float
    ) -> tuple[socket.socket, Requests]:
        told = time.monotonic() + TELL_SECONDS
        while time.monotonic() < end:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(max(0.01, min(end, told) - time.monotonic()))
            try:
                connection.connect("\0" + self._addresses[engine])
                return connection, self._meet(engine, connection)
            except (OSError, EOFError) as error:
                log.debug("[experts] engine %d is not there: %r", engine, error)
                connection.close()
            except BaseException:
                connection.close()
                raise
            if time.monotonic() >= told:
                told = float("inf")
                log.info("[experts] waiting for engine %d", engine)
            time.sleep(_RETRY_SECONDS)
        raise EngineDeadError(
            f"[experts] engine {engine}, which has {self._experts(engine)}, must be there within "
            f"{wait_seconds:g} s of this one; it is not. See its log."
        )

    def _meet(self, engine: int, connection: socket.socket) -> Requests:
        if not peer_is_own_user(connection):
            raise OSError("it is another user's")
        hello, descriptors = receive(connection, read_hello)
        expected = Hello(engine, len(self._layers), self._width)
        try:
            if hello != expected or len(descriptors) != 1:
                raise OSError(f"it must say {expected}; got {hello}")
            memory = SharedMemory.attach(descriptors[0], ASKER)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        send(connection, Asker(self.number))
        connection.settimeout(None)
        return Requests(memory, self._width)

    def _experts(self, engine: int) -> str:
        numbers = self._placement.of(engine)
        if len(numbers) == 1:
            return f"expert {numbers[0]}"
        return f"experts {numbers[0]} to {numbers[-1]}" if numbers else "no experts"

    def _gone(self, engine: int) -> RankDeadError:
        return self._error or gone(engine, self._experts(engine), "its process has ended")

    def _poke(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    # -- in threads of their own ----------------------------------------------------------------
    def _watch(self) -> None:
        """Let engines in, and find out which are gone."""
        while True:
            poll = select.poll()
            with self._lock:
                own = [self._listener, self._wake, *self._watched]
                own += [one for one, results in self._served.items() if results is not None]
            # One that is served may close its own in this moment.
            found = {number: one for one in own if (number := one.fileno()) >= 0}
            for descriptor in found:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                connection = found[descriptor]
                if connection is self._wake:
                    self._wake.recv(4096)
                elif connection is not self._listener:
                    self._left(connection)
                elif not self._let_in():
                    return

    def _let_in(self) -> bool:
        """Return False once nobody is to come any more."""
        connection = accept_own_user(self._listener)
        if connection is None:
            return not self._is_closed
        connection.settimeout(_GREETING_SECONDS)
        name = f"quire-experts-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, args=(connection,), name=name, daemon=True)
        with self._lock:
            self._served[connection] = None
            self._threads.append(thread)
        thread.start()
        return True

    def _left(self, connection: socket.socket) -> None:
        """An engine asks no more, or one that is asked is gone; neither says anything else."""
        with self._lock:
            engine = self._watched.pop(connection, None)
            results = self._served.get(connection)
        if results is not None:
            results.fail("the engine that asks has left")
            with self._lock:
                self._served.pop(connection, None)
        if engine is None:
            return
        connection.close()
        if self._is_leaving:
            return
        self._error = self._error or self._gone(engine)
        log.error("%s", self._error)
        self._requests[engine].fail(str(self._error))
        with suppress(OSError):
            self._fail.send(b"\0")

    def _serve(self, connection: socket.socket) -> None:
        """Multiply rows for one engine until it is gone."""
        results: Results | None = None
        try:
            self._loaded.wait()
            if self._is_leaving:
                return
            memory = create_memory()
            results = Results(
                memory, self._width, self._placement.of(self.number), tuple(self._layers)
            )
            send(
                connection,
                Hello(self.number, len(self._layers), self._width),
                memory.descriptor,
            )
            receive(connection, read_asker)
            with self._lock:
                self._served[connection] = results
            self._poke()
            while True:
                count = results.serve()
                with self._lock:
                    self._rows_served += count
        except (EOFError, OSError, RankDeadError) as error:
            log.debug("[experts] an engine has left: %r", error)
        except Exception:
            log.exception("[experts] rows of another engine cannot be multiplied")
        finally:
            with self._lock:
                self._served.pop(connection, None)
            if results is not None:
                results.close()
            connection.close()
            self._poke()

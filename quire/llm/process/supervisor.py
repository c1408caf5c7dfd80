"""The engine's process kept alive: started, read, watched, and started again.

It knows messages, not requests: its owner knows what they mean to those.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from quire.core import errors
from quire.core.errors import CapacityError, EngineDeadError, QuireError
from quire.core.metrics import METRICS, Samples, add_counters, stem_of
from quire.llm.load_state import Loading
from quire.llm.process.engine_messages import (
    Done,
    Failed,
    FromEngine,
    Loaded,
    LoadProgress,
    Refused,
    Start,
    Step,
    ToEngine,
    from_engine,
)
from quire.llm.process.launcher import ChildLauncher, EngineLauncher, EngineProcess
from quire.llm.process.message_socket import MessageSocket
from quire.llm.process.restart_delay import RestartDelay
from quire.llm.process.step_pace import StepPace
from quire.settings.config import EngineConfig
from quire.system.log import get_logger
from quire.system.process_usage import cpu_seconds

log = get_logger(__name__)

#: How often the watchdog looks.
TICK_SECONDS = 0.25
#: Between two looks; more means that this process was paused, perhaps with the whole machine.
MAX_LOOK_SECONDS = 1.0


class Owner(Protocol):
    """The owner of the requests that the process serves; called in the supervisor's thread."""

    def has_work(self) -> bool:
        """Return whether the engine owes an answer."""
        ...

    def loaded(self, message: Loaded) -> None:
        """Take note of a process that is about to serve."""
        ...

    def received(self, message: Step | Refused | Done) -> None:
        """Act on a message about requests."""
        ...

    def ended(self, error: QuireError | None) -> None:
        """End all work, as ``error`` says; None when the owner has closed the engine."""
        ...


class Supervisor:
    """One process at a time, in a thread of its own.

    Once :meth:`check_serving` has passed, each message is answered or :meth:`Owner.ended` follows:
    an owner that checks, sends and notes its work under a lock that ``ended`` takes too loses none.

    The first process starts, and imports what it needs, before the model to load is known.

    Args:
        owner: The owner, which is called from :meth:`load` on.
        watchdog_timeout: Longest time without a message while there is work, in seconds.
        loading: The progress of the process that loads, written to; cancelling it ends the first.
        launcher: The source of processes; without one they are children of this process.

    Attributes:
        num_restarts: Restarts since the start.
        step_time: The time at which the engine last advanced, on the monotonic clock.
        busy_time: The time at which it was last seen to compute, until it has ended a step.
        pace: The time that a step may take.
    """

    def __init__(
        self,
        owner: Owner,
        watchdog_timeout: float,
        loading: Loading | None = None,
        launcher: EngineLauncher | None = None,
    ) -> None:
        self._launcher = ChildLauncher() if launcher is None else launcher
        self._start: Start
        self._started = threading.Event()  # what to load is known, or that nothing is
        self.pace: StepPace
        self._owner = owner
        self._watchdog_timeout = watchdog_timeout
        self._loading = Loading() if loading is None else loading
        self.num_restarts = 0
        self.step_time = self.busy_time = self._work_time = time.monotonic()
        self._serving: MessageSocket | None = None
        self._pid: int | None = None
        self._cpu_seconds = 0.0
        self._closed = False
        self._retry_time = 0.0
        self._has_served = False  # the process that runs
        self._stats: Samples = {}  # of the process that serves
        self._ended_stats: Samples = {}  # counted by those before it
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._first_load: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="quire-supervisor", daemon=True)
        self._thread.start()

    def load(self, start: Start, meanwhile: Callable[[], None]) -> None:
        """Load a model in the first process, and return when it serves.

        Args:
            start: The settings of the model.
            meanwhile: A function that is called while the model loads.

        Raises:
            QuireError: The model cannot be loaded; the message says why.
        """
        self._start = start
        self.pace = StepPace(start.config.scheduler.max_num_batched_tokens)
        self._started.set()
        try:
            meanwhile()
            self._first_load.result()
        except BaseException:
            self.close()
            raise

    @property
    def config(self) -> EngineConfig:
        """The engine's settings; ``max_model_len`` is resolved once a process has loaded."""
        return self._start.config

    @property
    def pid(self) -> int | None:
        """Process id of the engine that serves, or None."""
        return None if self._serving is None else self._pid

    def check_serving(self) -> None:
        """Check that there is a process that takes requests.

        Raises:
            EngineDeadError: The engine was shut down.
            CapacityError: The engine is being restarted.
        """
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")
        if self._serving is None:
            wait = max(1.0, self._retry_time - time.monotonic())
            raise CapacityError("[engine] it is being restarted. Try again.", wait)

    def send(self, message: ToEngine) -> None:
        """Send to the process that serves; dropped when there is none any more."""
        link = self._serving
        if link is None:
            return
        if not self._owner.has_work():  # the watchdog's time begins
            # The supervisor's thread may be moving the first one on from where it was.
            self.step_time = self._work_time = time.monotonic()
        with suppress(OSError):  # that the process is gone shows where it is read
            link.send(message)
        if link.has_unsent:
            with suppress(OSError):  # full: the thread is about to wake anyhow
                self._waker.send(b"x")

    def stats(self) -> Samples:
        """Return the newest counters and gauges by metric stem; counters outlive restarts."""
        return add_counters(self._ended_stats, self._stats)

    def close(self) -> None:
        """End the process and the thread, after :meth:`Owner.ended`; a second call does nothing."""
        self._closed = True
        self._started.set()
        with suppress(OSError):
            self._waker.send(b"x")
        self._thread.join()
        self._waker.close()
        self._wake.close()

    # -- in the thread ------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._keep_running()
        finally:
            self._launcher.close()

    def _keep_running(self) -> None:
        delay = RestartDelay()
        while not self._closed:
            started = time.monotonic()
            self._has_served = False
            error = self._run_process()
            if not self._first_load.done():
                self._first_load.set_exception(error)
                return
            if self._closed:
                break
            self.num_restarts += 1
            seconds = delay.after(time.monotonic() - started, has_served=self._has_served)
            self._retry_time = time.monotonic() + seconds
            log.error("%s It is started again in %.1f s.", error, seconds)
            while not self._closed and time.monotonic() < self._retry_time:
                time.sleep(min(TICK_SECONDS, max(0.0, self._retry_time - time.monotonic())))
        self._owner.ended(None)

    def _run_process(self) -> QuireError:
        """Start a process and read it to its end; return why it ended."""
        try:
            child = self._launcher.launch(self._is_wanted)
        except QuireError as failure:
            return failure
        self._started.wait()
        if child is None or (self._closed and not self._first_load.done()):
            self._closed = True
            if child is not None:
                child.ending(at_once=True)
            return EngineDeadError("[engine] it was shut down.")
        self._pid = child.pid
        error: QuireError | None = None
        try:
            error = self._read(child, MessageSocket(child.socket, from_engine))
        except EOFError:
            pass
        except BaseException as failure:  # no request would get it, and all would wait
            log.exception("[engine] reading its process failed")
            error = EngineDeadError(f"[engine] reading its process failed: {failure!r}.")
        self._serving = None
        self._keep_counters()
        if self._closed:
            self._owner.ended(None)
        at_once = not (self._closed and self._first_load.done())
        ending = child.ending(at_once=at_once)
        if error is None:
            error = EngineDeadError(f"[engine] its process has died ({ending}); see the log.")
        self._owner.ended(error)
        return error

    def _is_wanted(self) -> bool:
        return not self._closed and (self._first_load.done() or not self._loading.cancelled)

    def _read(self, child: EngineProcess, link: MessageSocket) -> QuireError | None:
        """Read a process until it fails, is stuck or is not wanted any more.

        Raises:
            EOFError: The process is gone.
        """
        self._loading.begin()
        with suppress(OSError):  # that it is gone shows in what is received
            link.send(self._start)
        looked = time.monotonic()
        while not self._closed:
            link.wait(TICK_SECONDS, self._wake)
            if self._loading.cancelled and not self._first_load.done():
                self._closed = True
                return None
            with suppress(OSError):
                link.flush()
            for message in link.receive():
                error = self._apply(link, message)
                if error is not None:
                    return error
            with suppress(BlockingIOError):
                self._wake.recv(4096, socket.MSG_DONTWAIT)
            now = time.monotonic()
            if now - looked > MAX_LOOK_SECONDS:  # a time without a look says nothing of the engine
                self.step_time = min(now, self.step_time + now - looked)
            looked = now
            if not self.pace.is_known and self._computes():
                self.busy_time = now
            if self._serving is not None and self._is_stuck():
                return self._end_stuck(child)
        return None

    def _apply(self, link: MessageSocket, message: FromEngine) -> QuireError | None:
        """Act on a message; return the error it stands for."""
        self.step_time = time.monotonic()
        if isinstance(message, LoadProgress):
            self._loading.advance(message.done_bytes, message.total_bytes)
            return None
        if isinstance(message, Failed):
            kind: type[QuireError] = getattr(errors, message.kind, EngineDeadError)
            return kind(message.message)
        if isinstance(message, Loaded):
            self._stats = message.stats
            self.pace.restart()
            # What was promised to clients holds after a restart too.
            config = self._start.config
            model = replace(config.model, max_model_len=message.max_model_len)
            self._start.config = replace(config, model=model)
            self._owner.loaded(message)
            self._serving = link
            self._has_served = True
            if self._first_load.done():
                log.info("[engine] it serves again")
            else:
                self._first_load.set_result(None)
            return None
        if isinstance(message, Step) and message.stats is not None:
            self._stats = message.stats
            self.pace.observe(message.stats)
        self._owner.received(message)
        return None

    def _computes(self) -> bool:
        """Return whether the process has used the processor since the last look.

        What cannot be told of another machine is taken for granted; the watchdog finds it out.
        """
        if self._pid is None:
            return True
        before, self._cpu_seconds = self._cpu_seconds, cpu_seconds(self._pid)
        return self._cpu_seconds > before

    def _keep_counters(self) -> None:
        """Keep what a process that is gone has counted; its gauges, but for sizes, are zero."""
        names = [name for name in self._stats if METRICS[stem_of(name)].kind == "gauge"]
        gauges: Samples = dict.fromkeys(names, 0.0)
        kept = add_counters(self._ended_stats, self._stats)
        self._ended_stats, self._stats = kept, gauges  # at once: another thread adds the two

    def _is_stuck(self) -> bool:
        if not self._owner.has_work():  # asked first: what begins work sets the time before
            return False
        since = max(self.step_time, self._work_time)
        return time.monotonic() - since > self._watchdog_timeout

    def _end_stuck(self, child: EngineProcess) -> EngineDeadError:
        error = EngineDeadError(
            f"[engine] no step has ended for {self._watchdog_timeout:g} s (--watchdog-timeout) "
            "while requests were pending."
        )
        # The requests that wait are told first: the stacks take a moment.
        self._serving = None
        self._owner.ended(error)
        log.error("%s The engine's Python stacks:\n%s", error, child.stacks() or "none came")
        return error

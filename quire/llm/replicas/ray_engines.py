"""Engines that Ray places on the nodes of a cluster, as the server has them."""

from __future__ import annotations

import secrets
import select
import threading
import time
from concurrent.futures import Future, wait

from quire.core.errors import EngineDeadError, QuireError
from quire.llm.load_state import Loading
from quire.llm.process.restart_delay import RestartDelay
from quire.llm.replicas.ray_keeper import News, RayPlacement, Wanted
from quire.llm.replicas.remote_engines import RemoteEngines
from quire.llm.replicas.shared_settings import shared_settings
from quire.runner.ranks.handshake import receive
from quire.system.channel import send
from quire.system.child_process import ChildProcess
from quire.system.log import get_logger

log = get_logger(__name__)

#: How often it is looked whether engines are wanted.
_LOOK_SECONDS = 0.25


class RayEngines:
    """Keeps the engines through a process of its own, and starts another one when that is lost.

    Args:
        wanted: The engines that are wanted.
        loading: The progress of their model; cancelling it ends the wait for the cluster.

    Attributes:
        engines: The port that they connect to.

    Raises:
        QuireError: The cluster or the model does not exist.
    """

    def __init__(self, wanted: Wanted, loading: Loading) -> None:
        self._wanted, self._key = wanted, secrets.token_hex(16)
        self._listens: Future[RemoteEngines] = Future()
        self._has_served = False  # the keeper that runs has found its cluster
        threading.Thread(target=self._run, name="quire-ray", daemon=True).start()
        while not wait([self._listens], _LOOK_SECONDS).done:
            if loading.cancelled:
                raise EngineDeadError("[engine] it was shut down.")
        self.engines = self._listens.result()

    def _run(self) -> None:
        """Keep a keeper as long as engines are wanted; it ends with this thread."""
        delay = RestartDelay()
        while True:
            started, self._has_served, ending = time.monotonic(), False, "it cannot be started"
            try:
                child = ChildProcess("quire.llm.replicas.ray_keeper:run")
                try:
                    self._keep(child)
                finally:
                    ending = child.ending(at_once=False)
            except (EOFError, OSError) as lost:
                self._fail(EngineDeadError(f"[ray] what keeps its engines is lost: {lost}."))
            except Exception as error:
                self._fail(error)
            if self._listens.exception() is not None or not self._listens.result().is_open:
                return
            seconds = delay.after(time.monotonic() - started, has_served=self._has_served)
            log.error("[ray] its keeper has ended (%s); it begins again in %.1f s", ending, seconds)
            time.sleep(seconds)

    def _keep(self, child: ChildProcess) -> None:
        """Return when no engines are wanted any more.

        Raises:
            QuireError: The keeper does not find its cluster.
            EOFError: The keeper is gone.
            OSError: The keeper is gone.
        """
        send(child.socket, self._wanted)
        news = receive(child.socket, News)
        if news.failure is not None:
            raise news.failure.error()
        self._has_served = True
        if not self._listens.done():
            numbers, settings = self._wanted.numbers, shared_settings(self._wanted.config)
            self._listens.set_result(RemoteEngines(numbers, (news.node, 0), self._key, settings))
        engines = self._listens.result()
        send(child.socket, RayPlacement(engines.address, self._key))
        poll = select.poll()  # descriptors may be above what select takes
        poll.register(child.socket, select.POLLIN)
        while engines.is_open:
            if poll.poll(1000 * _LOOK_SECONDS):
                failure = receive(child.socket, News).failure
                if failure is not None:
                    self._fail(failure.error())

    def _fail(self, error: Exception) -> None:
        """Fail the start if it is not over; else log the error, before the next try."""
        if not self._listens.done():
            self._listens.set_exception(error)
            return
        log.error("%s", error)
        if isinstance(error, QuireError):
            self._listens.result().fail(error)

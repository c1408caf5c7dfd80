"""Engines on other machines, as the server has them: each connects by TCP, again when lost.

Engines here are ready to load; one with another key, version, model or setting is sent
away.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from quire.core.errors import ModelLoadError, QuireError
from quire.llm.replicas.shared_settings import shared_settings
from quire.runner.ranks.rendezvous import MEETING_SECONDS, Address, RankLink, Rendezvous
from quire.settings.config import EngineConfig
from quire.system import env
from quire.system.log import get_logger

log = get_logger(__name__)

#: How often an engine that is waited for is looked for.
_LOOK_SECONDS = 0.1
_LOOPBACK = ("127.", "::1", "localhost")


class RemoteEngine:
    """An engine's process on another machine; see :class:`quire.llm.process.launcher`.

    Args:
        link: The link to it.
    """

    pid = None

    def __init__(self, link: RankLink) -> None:
        self._link = link

    @property
    def socket(self) -> socket.socket:
        """The socket to it."""
        return self._link.connection

    def stacks(self) -> str:
        """Return nothing: its machine writes them to its own log."""
        return ""

    def ending(self, *, at_once: bool) -> str:
        """Close the connection, by which its machine ends it."""
        self._link.connection.close()
        return f"the connection to {self._link} is lost"


class RemoteLauncher:
    """Gives an engine the processes of its machine, as they connect.

    Args:
        number: Number of the engine.
        engines: The port that it connects to.
    """

    def __init__(self, number: int, engines: RemoteEngines) -> None:
        self._number, self._engines = number, engines
        self._has_come = False

    def launch(self, is_wanted: Callable[[], bool]) -> RemoteEngine | None:
        """Wait for the next process: see :class:`quire.llm.process.launcher.EngineLauncher`.

        Raises:
            ModelLoadError: The first process has not connected in time.
        """
        while is_wanted():
            link = self._engines.take(self._number)
            if link is not None:
                self._has_come = True
                return RemoteEngine(link)
            if not self._has_come:
                self._engines.check()
            time.sleep(_LOOK_SECONDS)
        return None

    def close(self) -> None:
        """Take note that no more processes are wanted."""
        self._engines.leave(self._number)


class RemoteEngines:
    """The server's port for engines of other machines; open until none is wanted any more.

    Args:
        numbers: Numbers of the engines.
        address: Address to listen at; port 0 is any.
        key: The key that engines show.
        settings: Settings that they share; see
            :func:`~quire.llm.replicas.shared_settings.shared_settings`.
        seconds: Seconds in which the first engines must connect.

    Raises:
        ConfigError: The address cannot be listened at.
    """

    def __init__(
        self,
        numbers: Collection[int],
        address: Address,
        key: str,
        settings: Mapping[str, str],
        seconds: float = MEETING_SECONDS,
    ) -> None:
        self.numbers = numbers
        self._meeting = Rendezvous(address, key, "engine", settings)
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self._lock = threading.Lock()  # guards what follows
        self._open = set(self.numbers)
        self._missing = set(self.numbers)  # engines that have never connected
        self._failure: QuireError | None = None
        self._asked: set[int] = set()
        self._given: dict[int, RankLink] = {}
        place, others = "{}:{}".format(*self.address), _listed(self.numbers)
        log.info("[parallel] engines of other machines connect to %s: %s", place, others)
        threading.Thread(target=self._run, name="quire-engines", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """The address that they connect to."""
        return self._meeting.address

    @property
    def is_open(self) -> bool:
        """Whether any engine is wanted."""
        return bool(self._open)

    def launchers(self) -> dict[int, RemoteLauncher]:
        """Return the launcher of each engine, by number."""
        return {number: RemoteLauncher(number, self) for number in self.numbers}

    def take(self, number: int) -> RankLink | None:
        """Return the link of an engine that has connected; else keep its next one, return None."""
        with self._lock:
            self._asked.add(number)
            return self._given.pop(number, None)

    def check(self) -> None:
        """Check that engines that have never connected may still do so.

        Raises:
            ModelLoadError: The time in which they must connect is over.
            QuireError: The error that :meth:`fail` was given.
        """
        with self._lock:
            if self._missing and self._failure is not None:
                raise self._failure
            if time.monotonic() < self._end or not self._missing:
                return
            missing = _listed(self._missing)
        raise ModelLoadError(
            f"[parallel] all engines must connect within {self._seconds:g} s; got none for "
            f"{missing}. See the log of the machines that they are to run on."
        )

    def fail(self, error: QuireError) -> None:
        """Raise an error in those that wait for engines which have never connected."""
        with self._lock:
            self._failure = error

    def leave(self, number: int) -> None:
        """Take note that an engine is wanted no more; after the last one the port is closed."""
        with self._lock:
            self._open.discard(number)

    def _run(self) -> None:
        """Let engines in, in a thread of its own."""
        here: dict[int, RankLink] = {}
        try:
            while self._open:
                self._meeting.greet(self.numbers, here)
                with self._lock:
                    self._missing -= here.keys()
                    for number in self._asked & here.keys():
                        self._asked.remove(number)
                        self._given[number] = here.pop(number)
        except Exception:
            log.exception("[parallel] engines of other machines cannot connect any more")
        finally:
            self._meeting.close()
            for link in (*here.values(), *self._given.values()):
                with suppress(OSError):
                    link.connection.close()


def listen_for_machines(config: EngineConfig) -> RemoteEngines:
    """Return the port that engines of machines that are started one by one connect to.

    Raises:
        ConfigError: The address cannot be listened at.
        ModelLoadError: The model does not exist.
    """
    options, key = config.parallel, env.get("QUIRE_CLUSTER_KEY") or ""
    address = options.master_addr, options.master_port
    if not key and not address[0].startswith(_LOOPBACK):
        log.warning("[parallel] engines of other machines need no key: set QUIRE_CLUSTER_KEY")
    numbers = range(options.engines_of(0).stop, options.data_parallel_size)
    return RemoteEngines(numbers, address, key, shared_settings(config))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))

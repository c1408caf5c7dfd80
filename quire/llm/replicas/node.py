"""A machine without a server: its engines compute for the server on machine 0, again and again."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from quire.core.errors import EngineDeadError, QuireError
from quire.llm.planning.inferred_methods import infer_methods
from quire.llm.process.remote_engine_loop import OwnSettings, hand_over
from quire.llm.replicas.load_replicas import divide
from quire.llm.replicas.shared_settings import model_folders, shared_settings
from quire.runner.ranks.rendezvous import JoinRequest, hello, join
from quire.settings.config import EngineConfig
from quire.system import env
from quire.system.child_process import ChildProcess
from quire.system.log import LogFormat, get_logger
from quire.system.machine import Machine

log = get_logger(__name__)

#: How often an engine is looked after.
TICK_SECONDS = 0.25
#: Between an engine's end and the next one.
PAUSE_SECONDS = 0.5
#: The other side will send nothing more, also when what it sent before has not been read.
_SERVER_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class NodeEngine:
    """A process for each server in turn, one at a time, in a thread of its own.

    Args:
        address: Address of the server.
        said: The greeting, which says which engine this is.
        own: The settings that this machine decides.

    Attributes:
        failure: The reason why no further process is started; None as long as one will be.
    """

    def __init__(self, address: tuple[str, int], said: JoinRequest, own: OwnSettings) -> None:
        self._address, self._said, self._own = address, said, own
        self.failure: QuireError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process and the thread."""
        self._closed = True

    def wait(self) -> None:
        """Wait until both have ended."""
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._serve_once()
            except QuireError as error:
                if not self._closed:
                    self.failure = error
                return
            except OSError as error:
                log.warning("[engine %d] it begins again: %s", self._said.rank, error)
            time.sleep(PAUSE_SECONDS)

    def _serve_once(self) -> None:
        """Serve with one process until it ends, or its server does.

        Raises:
            QuireError: No server takes this engine.
            OSError: The process cannot be started, or died while it waited.
        """
        # It imports the engine while the server is waited for.
        child = ChildProcess("quire.llm.process.remote_engine_loop:run")
        try:
            with join(self._address, self._said, check=self._check) as connection:
                hand_over(child.socket, connection, self._own)
                self._watch(child, connection)
        finally:
            ending = child.ending(at_once=True)
        log.warning("[engine %d] its process has ended (%s)", self._said.rank, ending)

    def _check(self) -> None:
        if self._closed:
            raise EngineDeadError("[engine] it was shut down.")

    def _watch(self, child: ChildProcess, connection: socket.socket) -> None:
        """Return when the process has ended, or is to be killed."""
        poll = select.poll()
        poll.register(child.socket, select.POLLIN)
        poll.register(connection, _SERVER_GONE)
        while not self._closed:
            found = [descriptor for descriptor, _ in poll.poll(1000 * TICK_SECONDS)]
            if connection.fileno() in found:
                log.warning("[engine %d] its server is gone", self._said.rank)
                if child.wait() is None:  # it does not look: it is stuck, or the server found so
                    stacks = child.stacks() or "none came"
                    log.error("[engine %d] its Python stacks:\n%s", self._said.rank, stacks)
                return
            if found:
                child.wait()
                return


def own_settings(
    config: EngineConfig, machine: Machine, count: int, log_format: LogFormat
) -> OwnSettings:
    """Return the settings that this machine decides for each of its engines.

    Raises:
        ModelLoadError: The model does not exist.
    """
    folder, tokenizer_folder = map(str, model_folders(config))
    part = divide(infer_methods(config), machine, count)
    return OwnSettings(folder, tokenizer_folder, part, log_format)


def run_engines(
    config: EngineConfig,
    machine: Machine,
    log_format: LogFormat,
    is_ending: Callable[[], bool],
) -> None:
    """Serve the server on machine 0 with this machine's engines; when it is gone, the next one.

    Args:
        config: The settings, which say which engines these are; they divide this machine.
        machine: The machine as it is now.
        log_format: Format of their log lines.
        is_ending: A function that is asked often whether to stop.

    Raises:
        QuireError: The model does not exist, no server was found, or it takes no such engine.
    """
    options, settings = config.parallel, shared_settings(config)
    numbers = options.engines_of(options.node_rank)
    own = own_settings(config, machine, len(numbers), log_format)
    address, key = (options.master_addr, options.master_port), env.get("QUIRE_CLUSTER_KEY") or ""
    log.info("[parallel] engines %d to %d of %s:%d", numbers[0], numbers[-1], *address)
    engines = []
    try:
        for number in numbers:
            engines.append(NodeEngine(address, hello(number, key, "engine", settings), own))
        while not is_ending():
            for engine in engines:
                if engine.failure is not None:
                    raise engine.failure
            time.sleep(TICK_SECONDS)
    finally:
        for engine in engines:
            engine.close()
        for engine in engines:
            engine.wait()

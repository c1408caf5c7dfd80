"""The process that keeps a server's engines running in a Ray cluster; it ends with its server.

Ray ends a process that uses it when the head of the cluster is gone for a minute. So the server
does not use it.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import replace

import msgspec

from quire.core.errors import QuireError
from quire.llm.replicas.node import TICK_SECONDS, NodeEngine, own_settings
from quire.llm.replicas.shared_settings import shared_settings
from quire.runner.ranks.handshake import StartFailed, receive
from quire.runner.ranks.ray_cluster import RayCluster, failure_text
from quire.runner.ranks.rendezvous import Address, hello
from quire.settings.config import EngineConfig
from quire.system.channel import send
from quire.system.connections import readable
from quire.system.log import LogFormat, get_logger, set_format
from quire.system.machine import read_machine

log = get_logger(__name__)

#: Between an actor's end and the next one.
PAUSE_SECONDS = 1.0


class Wanted(msgspec.Struct, frozen=True):
    """The engines that a keeper is to keep.

    Attributes:
        numbers: Numbers of the engines.
        num_own: Engines of the server's machine, for which room is left there.
        config: Settings of all engines; threads are those of each rank.
        log_format: Format of their log lines.
    """

    numbers: list[int]
    num_own: int
    config: EngineConfig
    log_format: LogFormat


class RayPlacement(msgspec.Struct, frozen=True):
    """The place that engines connect to.

    Attributes:
        address: Address of the server's port for them.
        key: The key that they show there.
    """

    address: Address
    key: str


class News(msgspec.Struct, frozen=True):
    """A message of a keeper to its server: first its address, then failures.

    Attributes:
        node: Address of this machine.
        failure: The reason why an engine has ended by itself, or none can be placed.
    """

    node: str = ""
    failure: StartFailed | None = None


def run_engine(number: int, place: RayPlacement, wanted: Wanted) -> None:
    """Serve for ever with one engine of a server, and its next process when one has ended.

    Raises:
        QuireError: The model does not exist here, or the server refuses the engine.
    """
    import ray

    set_format(wanted.log_format)
    config, node = wanted.config, ray.get_runtime_context().get_node_id()
    found = [one for one in ray.nodes() if one["NodeID"] == node]
    machine = replace(read_machine(), num_cores=int(found[0]["Resources"]["CPU"]))
    said = hello(number, place.key, "engine", shared_settings(config))
    own = own_settings(config, machine, 1, wanted.log_format)
    engine = NodeEngine(place.address, said, own)
    while engine.failure is None:
        time.sleep(TICK_SECONDS)
    raise engine.failure


class Keeper:
    """Engines in the cluster, each in room of its own.

    Args:
        cluster: The cluster that they are placed in.
        wanted: The engines that are wanted.
        place: The place that they connect to.
        server: The socket to the server, which is told of failures.

    Raises:
        ModelLoadError: The cluster has no room for them.
    """

    def __init__(
        self, cluster: RayCluster, wanted: Wanted, place: RayPlacement, server: socket.socket
    ) -> None:
        self._cluster, self._wanted, self._place, self._server = cluster, wanted, place, server
        parallel = wanted.config.parallel
        self._processors = (parallel.threads or 1) * parallel.layout.size
        room = [self._processors * wanted.num_own, *[self._processors] * len(wanted.numbers)]
        cluster.take_room(room, "SPREAD")
        for number in wanted.numbers:
            self._start(number)

    def keep(self) -> None:
        """Start engines that have ended again, until the server is gone.

        Raises:
            OSError: The server is gone.
        """
        while not readable([self._server], 0):
            for number in self._cluster.ended(TICK_SECONDS):
                self._tell(number)
                time.sleep(PAUSE_SECONDS)
                self._start(number)

    def _start(self, number: int) -> None:
        part, name = 1 + self._wanted.numbers.index(number), f"engine {number}"
        own = number, self._place, self._wanted
        self._cluster.start(number, part, self._processors, name, run_engine, *own)

    def _tell(self, number: int) -> None:
        failure = self._cluster.failure(number)
        log.warning("[engine %d] its actor has ended: %s", number, failure_text(failure))
        if isinstance(failure, QuireError):
            send(self._server, News(failure=StartFailed.of(failure)))


def run(parent: socket.socket) -> None:
    """Keep the engines that the parent process wants, until it is gone."""
    cluster = None
    try:
        wanted = receive(parent, Wanted)
        set_format(wanted.log_format)
        cluster = RayCluster()
        send(parent, News(cluster.node))
        Keeper(cluster, wanted, receive(parent, RayPlacement), parent).keep()
    except QuireError as error:
        with suppress(OSError):
            send(parent, News(failure=StartFailed.of(error)))
    except (EOFError, OSError):
        return
    finally:
        if cluster is not None:
            cluster.close()

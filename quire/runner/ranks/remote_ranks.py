"""The other ranks of an engine on any machine: a launcher starts them, and they connect by TCP."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from quire.distributed.hierarchical_group import HierarchicalGroup
from quire.distributed.memory_nodes import bind_rank
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld
from quire.runner.ranks.handshake import StartRank
from quire.runner.ranks.ranks import Peer, Ranks, World
from quire.runner.ranks.rendezvous import Address, RankLink, Rendezvous, machine_id
from quire.settings.config import EngineConfig
from quire.system.channel import send
from quire.system.log import get_logger

log = get_logger(__name__)


class Launcher(Protocol):
    """Starter of ranks 1 to ``size - 1``.

    Attributes:
        address: Address that the driver listens at.
        key: Key that ranks must have.
    """

    address: Address
    key: str

    def start(self, address: Address) -> None:
        """Start ranks, which connect to ``address``.

        Raises:
            QuireError: The ranks cannot be started.
        """
        ...

    def check(self) -> None:
        """Check that all ranks may still connect.

        Raises:
            QuireError: A rank will not connect.
        """
        ...

    def why_gone(self, rank: int) -> str:
        """Return the known reason of a rank's end, or empty."""
        ...

    def close(self) -> None:
        """End the ranks that it has started."""
        ...


class Welcome(msgspec.Struct, frozen=True):
    """The driver's answer to a rank that has connected.

    Attributes:
        start: The rank's settings.
        memory: Process and descriptor of the memory that all ranks share; None where they are on
            several machines.
        store: Address where the ranks of several machines meet, or None.
        place, neighbours: Index of the rank among those of its machine, and their number.
    """

    start: StartRank
    memory: tuple[int, int] | None = None
    store: Address | None = None
    place: int = 0
    neighbours: int = 1


def gather_ranks(folder: Path, config: EngineConfig, launcher: Launcher) -> Ranks:
    """Start ranks 1 to ``size - 1``, and return them once they have connected.

    Ranks of one machine share memory; others use torch.distributed, and get commands by TCP.

    Args:
        folder: The checkpoint.
        config: Settings of each rank.
        launcher: Launcher that starts the ranks.

    Raises:
        QuireError: Some ranks have not connected.
    """
    size = config.parallel.layout.size
    rendezvous = Rendezvous(launcher.address, launcher.key)
    try:
        launcher.start(rendezvous.address)
        links = rendezvous.gather(range(1, size), launcher.check)
    except BaseException:
        rendezvous.close()
        launcher.close()
        raise
    places = places_of([machine_id(), *(link.hello.machine for link in links)])
    try:
        world = _join(links, folder, config, places)
    except BaseException:
        for link in links:
            link.connection.close()
        launcher.close()
        raise
    log.info("[parallel] ranks exchange data by %s", world.group().name)
    binding = bind_rank(*places[0], config.parallel.threads or 1)
    log.info("[parallel] on this machine, %s", binding.text)

    def end() -> None:
        launcher.close()
        binding.release()

    return Ranks([_peer(link, launcher) for link in links], world, end)


def places_of(machines: Sequence[str]) -> list[tuple[int, int]]:
    """Return each rank's index among those of its machine, and their number.

    Args:
        machines: Machine of each rank, by rank.
    """
    before = Counter[str]()
    found = []
    for machine in machines:
        found.append((before[machine], machines.count(machine)))
        before[machine] += 1
    return found


def _join(
    links: list[RankLink], folder: Path, config: EngineConfig, places: list[tuple[int, int]]
) -> World:
    """Send ranks their settings, and return the connections to them."""
    size, layout, machine = len(links) + 1, config.parallel.layout, machine_id()
    memory: SharedMemory | None = None
    shared = store = None
    if all(link.hello.machine == machine for link in links):
        memory = SharedMemory.create(size, layout.groups)
        shared = (os.getpid(), memory.descriptor)
    else:
        store = (links[0].connection.getsockname()[0], _free_port())
    for link in links:
        rank = link.hello.rank
        start = StartRank(rank, str(folder), config.of_rank(rank))
        send(link.connection, Welcome(start, shared, store, *places[rank]))
    if memory is not None:
        return memory
    assert store is not None
    return HierarchicalGroup(TorchWorld(*store, 0, size), layout.groups, machine)


def _free_port() -> int:
    with socket.create_server(("", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _peer(link: RankLink, launcher: Launcher) -> Peer:
    said = link.hello
    place = f"process {said.pid} on {said.node}"
    return Peer(said.rank, link.connection, place, lambda: launcher.why_gone(said.rank))

"""The other ranks of an engine wherever they are: somebody starts them, and they come by TCP."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from quire.core.config import EngineConfig
from quire.core.log import get_logger
from quire.distributed.memory_nodes import bind_rank
from quire.distributed.mixed_world import MixedWorld
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld
from quire.runner.parallel.handshake import StartRank, send
from quire.runner.parallel.meeting import Address, Meeting, RankLink, machine_id
from quire.runner.parallel.ranks import Peer, Ranks, World

log = get_logger(__name__)


class Launcher(Protocol):
    """Who starts ranks 1 to ``size - 1``.

    Attributes:
        address: Where the driver listens.
        key: That ranks show.
    """

    address: Address
    key: str

    def start(self, address: Address) -> None:
        """Start ranks, which come to ``address``.

        Raises:
            QuireError: It cannot.
        """
        ...

    def check(self) -> None:
        """Return as long as all of them may still come.

        Raises:
            QuireError: One will not.
        """
        ...

    def why_gone(self, rank: int) -> str:
        """Return what is known of the end of a rank; empty if nothing is."""
        ...

    def close(self) -> None:
        """End those that it has started."""
        ...


class Welcome(msgspec.Struct, frozen=True):
    """What a driver tells a rank that has come.

    Attributes:
        start: What it is to be.
        memory: Process and descriptor of the memory that all ranks share; None where they are on
            several machines.
        store: Where they meet then.
        place, neighbours: Of the rank among those of its machine, and how many these are.
    """

    start: StartRank
    memory: tuple[int, int] | None = None
    store: Address | None = None
    place: int = 0
    neighbours: int = 1


def gather_ranks(folder: Path, config: EngineConfig, launcher: Launcher) -> Ranks:
    """Have ranks 1 to ``size - 1`` started, and return them when they have come.

    Ranks of one machine share memory; else torch.distributed joins them, and commands go by TCP.

    Args:
        folder: The checkpoint.
        config: Settings of each rank.
        launcher: Starts them.

    Raises:
        QuireError: Some have not come.
    """
    size = config.parallel.layout.size
    meeting = Meeting(launcher.address, launcher.key)
    try:
        launcher.start(meeting.address)
        links = meeting.gather(range(1, size), launcher.check)
    except BaseException:
        meeting.close()
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
    log.info("[parallel] ranks exchange by %s", world.group().name)
    binding = bind_rank(*places[0], config.parallel.threads or 1)
    log.info("[parallel] of this machine %s", binding.text)

    def end() -> None:
        launcher.close()
        binding.release()

    return Ranks([_peer(link, launcher) for link in links], world, end)


def places_of(machines: Sequence[str]) -> list[tuple[int, int]]:
    """Return each rank's place among those of its machine, and how many these are.

    Args:
        machines: Of each rank, by rank.
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
    """Tell ranks what they are to be, and return how they are reached."""
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
    return MixedWorld(TorchWorld(*store, 0, size), layout.groups, machine)


def _free_port() -> int:
    with socket.create_server(("", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _peer(link: RankLink, launcher: Launcher) -> Peer:
    said = link.hello
    place = f"process {said.pid} on {said.node}"
    return Peer(said.rank, link.connection, place, lambda: launcher.why_gone(said.rank))

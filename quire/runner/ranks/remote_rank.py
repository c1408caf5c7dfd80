"""A rank that was not started by its driver: it connects to the driver and serves it."""

from __future__ import annotations

import faulthandler

import msgspec

from quire.core.errors import ModelLoadError
from quire.distributed.hierarchical_group import HierarchicalGroup
from quire.distributed.memory_nodes import bind_rank
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld
from quire.runner.ranks.handshake import receive
from quire.runner.ranks.rank_process import serve
from quire.runner.ranks.ranks import World
from quire.runner.ranks.remote_ranks import Welcome
from quire.runner.ranks.rendezvous import MEETING_SECONDS, Address, hello, join, machine_id
from quire.system.log import get_logger

log = get_logger(__name__)


def serve_driver(
    address: Address,
    key: str,
    rank: int,
    seconds: float = MEETING_SECONDS,
    folder: str | None = None,
) -> None:
    """Connect to the driver and serve as a rank of its engine, until the driver ends or is gone.

    Args:
        address: Address that the driver listens at.
        key: Key that ranks must have.
        rank: Number of the rank.
        seconds: The longest wait for the driver.
        folder: The checkpoint on this machine; None for the path that the driver uses.

    Raises:
        ModelLoadError: No driver listens at the address, or it is gone.
        ConfigError: The driver has refused this rank.
    """
    faulthandler.enable(all_threads=True)
    with join(address, hello(rank, key), seconds) as connection:
        try:
            welcome = receive(connection, Welcome)
        except (EOFError, OSError) as error:
            raise ModelLoadError(f"[rank {rank}] its driver is gone: {error}.") from error
        start = welcome.start
        if folder is not None:
            start = msgspec.structs.replace(start, folder=folder)
        world: World
        if welcome.memory is not None:
            world = SharedMemory.of_process(*welcome.memory, rank)
        else:
            assert welcome.store is not None
            layout = start.config.parallel.layout
            torch_world = TorchWorld(*welcome.store, rank, layout.size)
            world = HierarchicalGroup(torch_world, layout.groups, machine_id())
        threads = start.config.parallel.threads or 1
        bound = bind_rank(welcome.place, welcome.neighbours, threads)
        log.debug("[rank %d] of this machine %s", rank, bound.text)
        serve(connection, start, world)

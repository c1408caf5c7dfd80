"""A rank that was started by somebody else than its driver: it goes there, and serves it."""

from __future__ import annotations

import faulthandler

import msgspec

from quire.core.errors import ModelLoadError
from quire.core.log import get_logger
from quire.distributed.memory_nodes import bind_rank
from quire.distributed.mixed_world import MixedWorld
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld
from quire.runner.parallel.handshake import receive
from quire.runner.parallel.meeting import MEETING_SECONDS, Address, hello, join, machine_id
from quire.runner.parallel.rank_process import serve
from quire.runner.parallel.ranks import World
from quire.runner.parallel.remote_ranks import Welcome

log = get_logger(__name__)


def serve_driver(
    address: Address,
    key: str,
    rank: int,
    seconds: float = MEETING_SECONDS,
    folder: str | None = None,
) -> None:
    """Go to the driver and be a rank of its engine, until it ends or is gone.

    Args:
        address: Where it listens.
        key: That ranks show.
        rank: Which to be.
        seconds: How long to wait for it.
        folder: The checkpoint on this machine; None where the driver's is.

    Raises:
        ModelLoadError: There is no driver.
        ConfigError: It takes no such rank.
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
            world = MixedWorld(torch_world, layout.groups, machine_id())
        threads = start.config.parallel.threads or 1
        bound = bind_rank(welcome.place, welcome.neighbours, threads)
        log.debug("[rank %d] of this machine %s", rank, bound.text)
        serve(connection, start, world)

"""A rank's process: it loads its part of a model, then carries out commands until it is ended."""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from quire.core.errors import QuireError, RankDeadError
from quire.distributed.memory_nodes import bind_rank
from quire.distributed.shared_memory_group import SharedMemory
from quire.runner.memory.model_part import ModelPart
from quire.runner.ranks.handshake import (
    RankLoaded,
    StartFailed,
    StartRank,
    receive_with_descriptors,
)
from quire.runner.ranks.loaded_part import load_part
from quire.runner.ranks.ranks import World
from quire.runner.ranks.worker import Worker
from quire.system.background_stream import use_background_stderr, wait_until_logged
from quire.system.channel import send
from quire.system.collector import collect_seldom
from quire.system.log import get_logger

log = get_logger(__name__)


def run(connection: socket.socket) -> None:
    """Serve the driver that started this process, until it closes the socket."""
    faulthandler.enable(all_threads=True)
    use_background_stderr()
    try:
        start, (descriptor,) = receive_with_descriptors(connection, StartRank)
    except (EOFError, OSError, ValueError):
        return
    options = start.config.parallel
    bound = bind_rank(start.rank, options.layout.size, options.threads or 1)
    log.debug("[parallel] %s", bound.text)
    world = SharedMemory.attach(descriptor, start.rank)
    os.close(descriptor)
    serve(connection, start, world)


def serve(connection: socket.socket, start: StartRank, world: World) -> None:
    """Run a rank until the driver ends it; errors are reported to the driver."""
    try:
        rank_part = ModelPart(start.rank, start.config.parallel, world.group)
        part = load_part(Path(start.folder), start.config, rank_part)
        send(
            connection,
            RankLoaded(
                weight_bytes=part.demand.weight_bytes,
                scratch_bytes=part.demand.scratch_bytes,
                block_bytes=part.demand.spec.block_bytes,
                num_blocks=part.memory.budget.num_blocks,
                max_model_len=part.memory.max_model_len,
            ),
        )
        _end_with(connection)
        collect_seldom()
        worker = Worker(part.model.decoder, rank_part, part.demand.spec, part.reader)
        worker.run(world.commands())
    except RankDeadError as error:
        # The driver names the rank that died; this rank merely cannot continue alone.
        log.debug("%s", error)
    except Exception as error:
        if not isinstance(error, QuireError):
            log.exception("[rank %d] it failed", start.rank)
        wait_until_logged()
        text = str(error) if isinstance(error, QuireError) else f"{type(error).__name__}: {error}"
        _tell(connection, StartFailed(type(error).__name__, text))


def _end_with(connection: socket.socket) -> None:
    """End this process when the driver closes its end, whatever the process waits for."""

    def wait() -> None:
        with suppress(OSError):
            connection.recv(1)
        os._exit(0)

    threading.Thread(target=wait, name="quire-driver", daemon=True).start()


def _tell(connection: socket.socket, message: StartFailed) -> None:
    try:
        send(connection, message)
    except OSError:
        log.debug("[rank] the driver is gone")

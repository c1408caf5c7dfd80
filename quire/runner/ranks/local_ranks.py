"""The other ranks of an engine as processes of this machine, its children."""

from __future__ import annotations

from pathlib import Path

from quire.distributed.memory_nodes import Binding, bind_rank
from quire.distributed.shared_memory_group import SharedMemory
from quire.runner.ranks.handshake import StartRank
from quire.runner.ranks.ranks import Peer, Ranks
from quire.settings.config import EngineConfig
from quire.system.channel import send
from quire.system.child_process import ChildProcess, ending_text
from quire.system.log import get_logger

log = get_logger(__name__)


def start_local_ranks(folder: Path, config: EngineConfig) -> Ranks:
    """Start ranks 1 to ``size - 1``; this process is rank 0.

    The calling thread must outlive the ranks: the kernel ends them with it.

    Args:
        folder: The checkpoint.
        config: Settings of each rank.

    Raises:
        OSError: A process cannot be started.
    """
    layout = config.parallel.layout
    world = SharedMemory.create(layout.size, layout.groups)
    children: list[ChildProcess] = []
    bindings: list[Binding] = []

    def end() -> None:
        for child in children:
            child.end(at_once=False)
        for binding in bindings:
            binding.release()

    try:
        for rank in range(1, layout.size):
            child = ChildProcess("quire.runner.ranks.rank_process:run")
            children.append(child)
            start = StartRank(rank, str(folder), config.of_rank(rank))
            send(child.socket, start, world.descriptor)
        # After the others were started, which would inherit the binding.
        bindings.append(bind_rank(0, layout.size, config.parallel.threads or 1))
        log.info("[parallel] %s", bindings[0].text)
    except BaseException:
        end()
        world.close()
        raise
    return Ranks([_peer(rank, child) for rank, child in enumerate(children, 1)], world, end)


def _peer(rank: int, child: ChildProcess) -> Peer:
    def why_gone() -> str:
        code = child.wait()
        return "" if code is None else f"its process has died, {ending_text(code)}"

    return Peer(rank, child.socket, f"process {child.pid}", why_gone)

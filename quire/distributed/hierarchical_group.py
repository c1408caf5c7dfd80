"""Ranks on several machines: groups whose ranks are on one machine share memory there."""

from __future__ import annotations

import os
from collections.abc import Sequence

from quire.core.errors import ConfigError
from quire.distributed.command_ring import CommandChannel
from quire.distributed.group import Group
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld
from quire.system.log import get_logger

log = get_logger(__name__)


class HierarchicalGroup:
    """One rank's connections to all others, each by the fastest transport.

    Args:
        world: The connections to all ranks.
        groups: World ranks of each group besides the one of all ranks.
        machine: Identifier of the machine, the same for ranks that can share memory.

    Raises:
        RankDeadError: A rank does not connect in time.
    """

    def __init__(self, world: TorchWorld, groups: Sequence[Sequence[int]], machine: str) -> None:
        self._world = world
        machines = world.exchange("machine", machine, range(world.size))
        own = [rank for rank, other in enumerate(machines) if other == machine]
        self._groups = [list(group) for group in groups if set(group) <= set(own)]
        self._memory = _share(world, own, self._groups) if self._groups else None
        if self._memory is not None:
            shared = "; ".join(", ".join(map(str, group)) for group in self._groups)
            log.info("[parallel] ranks of this machine share memory: %s", shared)

    def group(self, ranks: Sequence[int] | None = None) -> Group:
        """Return the group of all ranks, or that of some; this rank is one of them."""
        if self._memory is not None and ranks is not None and list(ranks) in self._groups:
            return self._memory.group(ranks)
        return self._world.group(ranks)

    def commands(self) -> CommandChannel:
        """Return this rank's end of the channel for rank 0's commands to all others."""
        return self._world.commands()

    def fail(self, rank: int, reason: str) -> None:
        """End waits of this machine's ranks; other machines' ranks learn it when a wait fails."""
        if self._memory is not None:
            self._memory.fail(rank, reason)
        self._world.fail(rank, reason)

    def close(self) -> None:
        """Close the shared memory and all connections."""
        if self._memory is not None:
            self._memory.close()
        self._world.close()


def _share(
    world: TorchWorld, own: Sequence[int], groups: Sequence[Sequence[int]]
) -> SharedMemory | None:
    """Return memory of all ranks of this machine; None for all where one cannot open it."""
    leader, memory = own[0], None
    try:
        if world.rank == leader:
            memory = SharedMemory.create(world.size, groups, rank=leader)
            world.tell(f"memory/{leader}", f"{os.getpid()} {memory.descriptor}")
        else:
            process, descriptor = world.ask(f"memory/{leader}").split()
            memory = SharedMemory.of_process(int(process), int(descriptor), world.rank)
    except (ConfigError, OSError) as error:
        log.warning("[parallel] rank %d shares no memory: %s", world.rank, error)
        if world.rank == leader:
            world.tell(f"memory/{leader}", "0 0")
    if "" in world.exchange("shares", "yes" if memory else "", own) and memory is not None:
        memory.close()
        return None
    return memory

"""What four ranks of two machines do, which really are one."""

from __future__ import annotations

import os

import numpy as np

from quire.core.errors import RankDeadError
from quire.distributed.hierarchical_group import HierarchicalGroup
from quire.distributed.torch_group import TorchWorld
from tests.distributed.collective_cases import check_group
from tests.distributed.worlds import World

GROUPS = ([0, 1], [2, 3])


def mix(world: World, machines: str) -> tuple[HierarchicalGroup, list[int]]:
    """Return what rank i has on the machine ``machines[i]``, and its group."""
    assert isinstance(world.torch, TorchWorld)
    rank = world.group.rank
    return HierarchicalGroup(world.torch, GROUPS, machines[rank]), GROUPS[rank // 2]


def compute(world: World, machines: str, times: str) -> None:
    """Use the group of all and the own one in turn."""
    mixed, ranks = mix(world, machines)
    own = mixed.group(ranks)
    assert own.rank == ranks.index(world.group.rank)
    for seed in (1, 2):
        check_group(own, seed, int(times))
        check_group(mixed.group(), seed, int(times))
    print(own.name, mixed.group().name)
    mixed.close()


def die(world: World, machines: str) -> None:
    """The last rank ends; its neighbour and the others name it."""
    mixed, ranks = mix(world, machines)
    all_ranks, own, x = mixed.group(), mixed.group(ranks), np.zeros(4, np.float32)
    world.meet(all_ranks)
    if all_ranks.rank == 3:
        os._exit(0)
    try:
        own.all_reduce(x)
        all_ranks.all_reduce(x)
    except RankDeadError as error:
        print(str(error).partition(":")[0])
        mixed.fail(3, "a watcher says so")

"""What ranks do while one of them is lost."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from quire.core.errors import RankDeadError
from tests.distributed.worlds import World


def compute(world: World) -> None:
    """Reduce until a rank is lost."""
    x = np.ones(20_000, np.float32)
    try:
        for step in range(1_000_000):
            world.group.all_reduce(x)
            x.fill(step)
            if step == 20:
                print("computing", flush=True)
    except RankDeadError as error:
        print(error)


def wait_for_the_last(world: World) -> None:
    """All but the last rank wait for it, in different calls of their own."""
    group = world.group
    world.meet(group)
    print("waiting", flush=True)
    if group.rank == group.size - 1:
        time.sleep(1000)
    x = np.zeros(10, np.float32)
    try:
        if group.rank == 0:
            group.all_reduce(x)
        else:
            group.recv(x, group.size - 1)
    except RankDeadError as error:
        print(error)


def send_half(world: World) -> None:
    """Rank 0 reduces with a rank that stands still when it has taken a part of what is sent."""
    group, x = world.group, np.ones(1 << 24, np.float32)
    world.meet(group)
    print("sending", flush=True)
    if group.rank == 1:
        kept = world.torch.start({}, {0: world.torch.tensor(x)}, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        assert kept
    try:
        group.all_reduce(x)
    except RankDeadError as error:
        print(error)


def be_told(world: World) -> None:
    """Wait for commands that never come."""
    world.meet()
    print("waiting", flush=True)
    try:
        if world.group.rank == 0:
            time.sleep(1000)
        world.commands.receive()
    except RankDeadError as error:
        print(error)


def differ(world: World) -> None:
    """Make different calls."""
    group = world.group
    try:
        if group.rank == 0:
            group.all_reduce(np.zeros(4, np.float32))
        else:
            group.any(True)
    except RuntimeError as error:
        print(error, flush=True)
    time.sleep(1000)  # the other one sees the call, too

"""What ranks do with the channel of commands."""

from __future__ import annotations

import hashlib
import resource
import time

import numpy as np

from tests.distributed.worlds import World

#: A wake-up that is lost costs a tenth of a second, when the sleeper looks again.
LOST_SECONDS = 0.1
COMMANDS = 600
SIZES = (0, 1, 100, 5000, 3_000_000, 7)


def follow(world: World) -> None:
    """Send messages of many sizes, in pieces; every worker gets all of them, in order."""
    rng = np.random.default_rng(5)
    digest = hashlib.sha256()
    for size in SIZES * 5:
        whole = rng.bytes(size)
        digest.update(len(whole).to_bytes(8, "little") + whole)
        if world.group.rank == 0:
            third = size // 3
            pieces = [whole[:third], memoryview(whole)[third : 2 * third], whole[2 * third :]]
            world.commands.send(pieces)
        else:
            found = world.commands.receive()
            assert bytes(found) == whole, (size, len(found))
            if world.group.rank == 2:
                time.sleep(0.01)  # the driver waits for the slowest
    print(digest.hexdigest())


def idle(world: World) -> None:
    """A worker uses no core while nothing comes, and wakes up when something does."""
    word = np.zeros(1, np.int32)
    world.group.any(False)
    if world.group.rank == 0:
        time.sleep(2.0)
        seconds = []
        for _ in range(COMMANDS):
            time.sleep(0.001)  # the worker sleeps again
            begin = time.monotonic()
            world.commands.send([b"a command"])
            world.group.recv(word, 1)
            seconds.append(time.monotonic() - begin)
        # Where the machine is busy some take longer.
        usual = sorted(seconds)[COMMANDS // 2]
        print("woken" if usual < LOST_SECONDS / 2 else f"{usual} s")
        return
    before = resource.getrusage(resource.RUSAGE_SELF)
    world.commands.receive()
    after = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(COMMANDS - 1):
        world.group.send(word, 0)
        world.commands.receive()
    world.group.send(word, 0)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print("idle" if used < 0.2 else f"used {used} s")  # a tenth of a core; one that spins: all

"""Every collective against numpy, by seeds: each rank knows what all of them give."""

from __future__ import annotations

import numpy as np

from quire.distributed.group import Group
from tests.distributed.worlds import World
from tests.sizes import sized

#: Of float32: nothing, one, few, the areas of tests plus one, several of them.
COUNTS = (0, 1, 7, 513, 2048, 4097, 50_000)
POWERS = 10.0 ** np.arange(-4, 5, dtype=np.float32)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return float32 of very different sizes: another order of a sum is another sum."""
    sizes = POWERS[rng.integers(len(POWERS), size=shape)]
    return rng.standard_normal(shape, np.float32) * sizes


def check_all_reduce(group: Group, rng: np.random.Generator) -> None:
    for count in COUNTS:
        given = numbers(rng, group.size, count)
        expected = given[0].copy()
        for part in given[1:]:
            expected += part
        found = group.all_reduce(given[group.rank].copy())
        np.testing.assert_array_equal(found, expected)


def check_gathers(group: Group, rng: np.random.Generator) -> None:
    for rows in (0, 1, 3, 65):
        for most in (1, 5, 400, 3000):
            widths = [int(w) for w in rng.integers(0, most + 1, group.size)]
            parts = [numbers(rng, rows, width) for width in widths]
            expected = np.concatenate(parts, axis=1)
            mine = parts[group.rank]
            out = np.full((rows, sum(widths)), np.nan, np.float32)
            assert group.all_gather_columns(mine, widths, out) is out
            np.testing.assert_array_equal(out, expected)
            root = int(rng.integers(group.size))
            target = np.zeros_like(out) if group.rank == root else None
            found = group.gather_columns(mine, widths, target, root)
            assert found is target
            if target is not None:
                np.testing.assert_array_equal(target, expected)


def check_all_to_all(group: Group, rng: np.random.Generator) -> None:
    for most in (0, 1, 100, 9000):
        counts = rng.integers(0, most + 1, (group.size, group.size))
        dtype = np.float32 if rng.integers(2) else np.int32
        sent = [[numbers(rng, n).astype(dtype) for n in row] for row in counts]
        out = [np.empty(counts[rank, group.rank], dtype) for rank in range(group.size)]
        group.all_to_all(sent[group.rank], out)
        for rank in range(group.size):
            np.testing.assert_array_equal(out[rank], sent[rank][group.rank])


def check_any(group: Group, rng: np.random.Generator) -> None:
    for flags in rng.integers(0, 2, (6, group.size)).astype(bool):
        assert group.any(bool(flags[group.rank])) is bool(flags.any())
        group.any(False)


def check_messages(group: Group, rng: np.random.Generator) -> None:
    """Messages go round; some are larger than a mailbox, others wait there together."""
    if group.size == 1:
        return
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for counts in (*([count] for count in COUNTS), [1, 0, 100]):
        given = [numbers(rng, count) for count in counts]
        found = [np.empty(count, np.float32) for count in counts]
        if group.rank:
            for x in found:
                group.recv(x, previous)
        for x in given if group.rank == 0 else found:
            group.send(x, following)
        if group.rank == 0:
            for x in found:
                group.recv(x, previous)
        for x, expected in zip(found, given, strict=True):
            np.testing.assert_array_equal(x, expected)


CHECKS = (
    check_all_reduce,
    check_gathers,
    check_all_to_all,
    check_any,
    check_messages,
)


def check_group(group: Group, seed: int, times: int = sized(1, 2)) -> None:
    """Run everything ``times`` times, in an order that the seed decides.

    Ranks in processes of their own are told how many times.
    """
    rng = np.random.default_rng(seed)
    for index in rng.permutation(np.tile(np.arange(len(CHECKS)), times)):
        CHECKS[index](group, rng)


def run(world: World, seed: str, times: str) -> None:
    """Be a rank."""
    check_group(world.group, int(seed), int(times))
    print("right", world.group.name)

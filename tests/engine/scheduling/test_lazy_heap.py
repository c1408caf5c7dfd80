"""The least of many keys that change, against a look at all of them; bounded whatever is pushed."""

from __future__ import annotations

import random

from quire.engine.scheduling.lazy_heap import LEAST_ROOM, LazyHeap


def test_it_finds_the_least_whatever_keys_do():
    rng = random.Random(0)
    keys: dict[str, int] = {}
    names = [f"n{i}" for i in range(20)]
    least = LazyHeap(keys.get)
    for _ in range(5000):
        name = rng.choice(names)
        if name in keys and rng.random() < 0.2:
            del keys[name]
        elif name in keys and rng.random() < 0.5:
            keys[name] += rng.randrange(5)  # without notice
        else:
            keys[name] = rng.randrange(1000)
            least.push(name)
        expected = min(keys.items(), key=lambda item: item[::-1], default=(None, None))[0]
        assert least.first() == expected


def test_keys_that_become_less_and_names_that_go_leave_nothing():
    """Such entries follow all others and would never come to the front."""
    keys = {"first": -(10**9)}
    least = LazyHeap(keys.get)
    least.push("first")
    for number in range(10_000):
        keys["other"] = -number
        least.push("other")
        name = f"gone{number}"
        keys[name] = number
        least.push(name)
        del keys[name]
        assert least.first() == "first"
    assert len(least) <= 2 * 2 + 2 * LEAST_ROOM

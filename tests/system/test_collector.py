"""The collector of a process that serves still finds cycles, but not in what is there for good."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from quire.system.collector import YOUNG_OBJECTS, collect_seldom


@pytest.fixture
def collector() -> Iterator[None]:
    """Put the collector's settings back."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("collector")
def test_cycles_are_freed_and_what_stays_is_left_alone() -> None:
    kept = Node()
    collect_seldom()
    assert gc.get_freeze_count() > 1000
    assert all(kept is not found for found in gc.get_objects())
    nodes = [weakref.ref(Node()) for _ in range(2 * YOUNG_OBJECTS)]
    assert sum(node() is None for node in nodes) >= YOUNG_OBJECTS // 2


@pytest.mark.usefixtures("collector")
def test_objects_of_middle_age_are_looked_at_a_few_at_a_time() -> None:
    """All of 110,000 were looked at together, in pauses of 55 ms that every stream saw."""
    collect_seldom()
    most = 0

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal most
        if phase == "start" and info["generation"] == 1:
            most = max(most, len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.callbacks.append(look)
    try:
        kept = [[i] for i in range(15 * YOUNG_OBJECTS)]
    finally:
        gc.callbacks.remove(look)
    assert len(kept) == 15 * YOUNG_OBJECTS and 0 < most < 5 * YOUNG_OBJECTS

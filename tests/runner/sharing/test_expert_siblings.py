"""Engines that multiply rows for each other, as threads of one process over real sockets."""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quire.core.errors import EngineDeadError, RankDeadError
from quire.core.expert_sharing import ExpertSharing
from quire.layers.engine_experts import Floats, Ints
from quire.layers.expert_placement import even_placement
from quire.runner.sharing import expert_requests
from quire.runner.sharing.expert_siblings import ExpertSiblings

WIDTH = 8
Create = Callable[[int], list[ExpertSiblings]]


def multiply(x: Floats, experts: Ints) -> Floats:
    """Tell whose row it was, and by which expert it went."""
    return x * 2 + experts[:, None].astype(np.float32)


def rows_of(experts: list[int]) -> tuple[Ints, Floats]:
    rows = np.arange(len(experts) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    return np.array(experts, np.int32), rows


@pytest.fixture
def create() -> Iterator[Create]:
    """Return a function that makes engines of two experts each and one layer; they end together."""
    made: list[ExpertSiblings] = []

    def start(size: int) -> list[ExpertSiblings]:
        name = f"quire-test-{secrets.token_hex(8)}"
        addresses = tuple(f"{name}-{number}" for number in range(size))
        placement = even_placement(2 * size, size)
        made.extend(
            ExpertSiblings(ExpertSharing(number, addresses), placement, WIDTH)
            for number in range(size)
        )
        for one in made:
            assert one.serve(multiply) == 0
        return made

    yield start
    with ThreadPoolExecutor(max(1, len(made))) as pool:
        list(pool.map(ExpertSiblings.close, made))
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("quire-experts") for name in names), names


def open_all(engines: list[ExpertSiblings]) -> None:
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(lambda one: one.open(60), engines))


def check(engine: ExpertSiblings, other: int, experts: list[int]) -> None:
    numbers, x = rows_of(experts)
    out = np.empty_like(x)
    engine.ask(other, 0, numbers, x)
    engine.answer(other, out)
    np.testing.assert_array_equal(out, multiply(x, numbers))


def test_each_asks_each(create: Create) -> None:
    engines = create(3)
    open_all(engines)

    def ask(engine: ExpertSiblings) -> None:
        for turn in range(50):
            for other in range(3):
                if other != engine.number:
                    check(engine, other, [2 * other + turn % 2] * (1 + turn))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, engines))

    def counted(way: str) -> list[float]:
        return [one.samples()[f'shared_expert_rows{{way="{way}"}}'] for one in engines]

    expected = [2 * sum(range(1, 51))] * 3
    assert counted("asked") == expected
    end = time.monotonic() + 60
    while counted("served") != expected and time.monotonic() < end:
        time.sleep(0.01)  # what was served is counted after it was sent
    assert counted("served") == expected
    assert engines[1].lines()[:2] == [
        "engine 0: experts 0 to 1", "engine 1 (this one): experts 2 to 3",
    ]  # fmt: skip


def test_rows_of_a_long_prompt_come_in_slices(
    create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_requests, "SLICE_BYTES", 4 * 4 * WIDTH)
    engines = create(2)
    open_all(engines)
    for count in (1, 4, 5, 8, 11):
        check(engines[0], 1, [2, 3, *[2] * count][:count])


def test_more_rows_than_the_memory_between_two_holds(
    create: Create,
) -> None:
    engines = create(2)
    open_all(engines)
    check(engines[1], 0, [0, 1] * 200_000)


def test_an_answer_that_nobody_took_is_not_the_next_one(
    create: Create,
) -> None:
    engines = create(2)
    open_all(engines)
    engines[0].ask(1, 0, *rows_of([2, 2, 3]))
    check(engines[0], 1, [3])


def test_an_engine_that_leaves_is_named(create: Create) -> None:
    engines = create(2)
    open_all(engines)
    engines.pop(1).close()
    assert select.select([engines[0].failure], [], [], 60)[0]
    named = "engine 1, which has experts 2 to 3, is gone"
    with pytest.raises(RankDeadError, match=named):
        engines[0].check()
    with pytest.raises(RankDeadError, match=named):
        check(engines[0], 1, [2])


@pytest.mark.parametrize("experts", [[0], [4], [-1]], ids=str)
def test_experts_that_an_engine_does_not_have_end_the_connection(
    create: Create, experts: list[int]
) -> None:
    engines = create(2)
    open_all(engines)
    with pytest.raises(RankDeadError, match="engine 1"):
        check(engines[0], 1, experts)
    check(engines[1], 0, [1])


def test_an_engine_that_does_not_come_is_named(
    create: Create,
) -> None:
    engines = create(2)
    with pytest.raises(EngineDeadError, match="engine 1, which has experts 2 to 3, must be there"):
        engines[0].open(0.2)

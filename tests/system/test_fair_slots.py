"""Places that clients share: whose turn it is, who is sent away, and that none is lost."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.core.errors import CapacityError, EngineDeadError
from quire.system.fair_slots import FairSlots

pytestmark = pytest.mark.asyncio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_clients_take_turns() -> None:
    turns, order = FairSlots(1, 1, 100, "[x] too many wait."), list[str]()

    async def work(client_id: str) -> None:
        await turns.take(client_id)
        order.append(client_id)
        await asyncio.sleep(0)
        turns.give_back(client_id)

    names = ["many"] * 5 + ["few", "one", "few"]
    await asyncio.gather(*map(work, names))
    assert order.index("one") < 5 and order.count("many") == 5
    first = order.index("few")
    assert "many" in order[first : order.index("few", first + 1)]


async def test_who_left_does_not_wait() -> None:
    turns = FairSlots(1, 1, 2, "[x] too many wait.")
    await turns.take("busy")
    left = [asyncio.create_task(turns.take("busy")) for _ in range(2)]
    await settle()
    for task in left:
        task.cancel()
    await settle()
    waits = asyncio.create_task(turns.take("busy"))
    await settle()
    turns.give_back("busy")
    await asyncio.wait_for(waits, 60)


async def test_one_client_leaves_a_place_to_others() -> None:
    turns = FairSlots(3, 2, 100, "[x] too many wait.")
    hogs = [asyncio.create_task(turns.take("hog")) for _ in range(10)]
    await settle()
    assert sum(task.done() for task in hogs) == 2
    await asyncio.wait_for(turns.take("other"), 60)
    turns.give_back("hog")
    await settle()
    assert sum(task.done() for task in hogs) == 3
    for task in hogs:
        task.cancel()


async def test_too_many_are_sent_away_alone() -> None:
    turns = FairSlots(1, 1, 2, "[x] too many wait.")
    await turns.take("a")
    waiting = [asyncio.create_task(turns.take("a")) for _ in range(2)]
    await settle()
    with pytest.raises(CapacityError, match="too many wait"):
        await turns.take("a")
    other = asyncio.create_task(turns.take("b"))
    await settle()
    turns.give_back("a")
    for task in (waiting[0], other, waiting[1]):
        await asyncio.wait_for(task, 60)
        turns.give_back("b" if task is other else "a")
    assert all(task.done() for task in (*waiting, other))


async def test_who_leaves_takes_no_place_along() -> None:
    turns = FairSlots(1, 1, 10, "[x] too many wait.")
    await turns.take("a")
    gone = [asyncio.create_task(turns.take("a")) for _ in range(3)]
    stays = asyncio.create_task(turns.take("b"))
    await settle()
    for task in gone:
        task.cancel()
    await settle()
    turns.give_back("a")
    await asyncio.wait_for(stays, 60)
    late = asyncio.create_task(turns.take("c"))
    await settle()
    turns.give_back("b")
    late.cancel()  # in the moment in which it has its turn
    await settle()
    await asyncio.wait_for(turns.take("d"), 60)


async def test_places_are_free_again_where_threads_take_no_more_work() -> None:
    """The first one failed by a name of Python's, and the others waited for ever."""
    turns = FairSlots(1, 1, 100, "[x] too many wait.")
    threads, goes_on = ThreadPoolExecutor(1), threading.Event()
    ids = [str(number) for number in range(4)]
    running = [asyncio.create_task(turns.run(id, threads, goes_on.wait)) for id in ids]
    await settle()
    threads.shutdown(wait=False, cancel_futures=True)
    goes_on.set()
    async with asyncio.timeout(240):
        first, *others = await asyncio.gather(*running, return_exceptions=True)
    assert first is True
    assert [type(other) for other in others] == [EngineDeadError] * 3

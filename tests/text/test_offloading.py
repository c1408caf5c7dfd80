"""Long texts wait for threads in turn, client by client; short ones for none."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire.text.offloading import INLINE_CHARACTERS, run_by_size, run_template

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("run", [run_by_size, run_template])
async def test_long_texts_of_one_client_held_up_those_of_all(run) -> None:
    """Six threads read the texts of all clients in the order in which they arrived."""
    held = threading.Event()
    tasks = [asyncio.create_task(run(INLINE_CHARACTERS, "many", held.wait)) for _ in range(40)]
    for _ in range(3):
        name = await asyncio.wait_for(
            run(INLINE_CHARACTERS, "few", lambda: threading.current_thread().name), 60
        )
        assert name.startswith("quire-")
    assert not any(task.done() for task in tasks)
    held.set()
    await asyncio.gather(*tasks)


async def test_a_template_that_takes_long_holds_up_no_long_text() -> None:
    held = threading.Event()
    tasks = [asyncio.create_task(run_template(1, str(client), held.wait)) for client in range(9)]
    assert await asyncio.wait_for(run_by_size(INLINE_CHARACTERS, "", lambda: 1), 60) == 1
    held.set()
    await asyncio.gather(*tasks)


async def test_short_texts_are_read_at_once() -> None:
    name = await run_by_size(INLINE_CHARACTERS - 1, "", lambda: threading.current_thread().name)
    assert name == threading.current_thread().name

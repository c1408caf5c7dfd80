"""Pulls of a server: those that no client waits for take no turn; failures are not lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quire.server.generation.pulls import MAX_PULLS, Pulls
from quire.store.pull_progress import PullProgress
from quire.store.store import Store


@pytest.fixture
def stalled(monkeypatch):
    """Have pulls stall until they are released; returns what was begun, and the release."""
    begun, released = [], threading.Event()

    def pull(self, name, revision, on_progress):
        begun.append(name)
        assert released.wait(60)
        on_progress(PullProgress("success"))

    monkeypatch.setattr(Store, "pull", pull)
    yield begun, released
    released.set()


async def first_step(pulls, name):
    return [step async for step in pulls.steps(name)]


async def test_a_pull_that_was_given_up_before_its_turn_is_not_begun(stalled):
    """Each asked the hub all the same, and those after it waited."""
    begun, released = stalled
    pulls = Pulls()
    for i in range(50):
        waiting = asyncio.create_task(first_step(pulls, f"left-{i}"))
        while not pulls.running():
            await asyncio.sleep(0)
        while i < MAX_PULLS and len(begun) <= i:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    last = asyncio.create_task(first_step(pulls, "wanted"))
    await asyncio.sleep(0)
    released.set()
    assert [step.status for step in await last] == ["success"]
    assert begun == ["left-0", "left-1", "wanted"]


async def test_a_failure_that_no_client_watches_is_in_the_log(monkeypatch, caplog):
    def pull(self, name, revision, on_progress):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Store, "pull", pull)
    pulls = Pulls()
    pulls.watch("quire-tiny")
    while pulls.goes_on("quire-tiny"):
        await asyncio.sleep(0.001)
    assert "quire-tiny" in caplog.text and "the disk is gone" in caplog.text

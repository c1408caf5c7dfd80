"""The outputs of a request's prompts as one: in turn with everything else on the event loop."""

from __future__ import annotations

import asyncio

from quire.core.outputs import RequestOutput
from quire.server.generation import generate
from quire.server.generation.generate import _merged

NUM_PROMPTS = 200


def output(index):
    return RequestOutput(f"r{index}", None, [1], None, [], True)


async def passes_between(events):
    """Return the most entries that ``events`` gets while the loop does nothing else."""
    sizes = []

    def look():
        sizes.append(len(events))
        if len(events) < NUM_PROMPTS:
            asyncio.get_running_loop().call_soon(look)

    look()
    return sizes


def merged(streams, weight=1, handing=None):
    """Return the outputs of streams that weigh the same each."""
    streams = list(streams)
    return _merged(streams, [weight] * len(streams), handing or asyncio.Lock())


def most_at_once(run):
    """Run with a list for what happens; return how much of it happened in one go."""

    async def main():
        events = []
        sizes = await passes_between(events)
        await run(events)
        sizes.append(len(events))
        return max(b - a for a, b in zip(sizes, sizes[1:], strict=False))

    return asyncio.run(main())


def test_all_prompts_of_a_body_are_submitted_at_once():
    """1,024 of them kept the loop for a quarter of a second, with n=128 for two."""

    async def run(started):
        async def stream(index):
            started.append(index)
            yield output(index)

        found = [one async for one in merged(map(stream, range(NUM_PROMPTS)))]
        assert {one.request_id for one in found} == {f"r{i}" for i in range(NUM_PROMPTS)}

    assert most_at_once(run) <= 4


def test_requests_with_many_prompts_hand_them_over_in_turn():
    """Four of 1,024 prompts with 1,000 biases kept the loop for 30 ms a turn, each for its own."""

    async def run(started):
        handing = asyncio.Lock()

        async def stream(index):
            started.append(index)
            yield output(index)

        async def follow(first):
            async for _ in merged(map(stream, range(first, NUM_PROMPTS, 4)), 1, handing):
                pass

        await asyncio.gather(*map(follow, range(4)))
        # Each is as far as the others.
        assert max(abs(index - place) for place, index in enumerate(started)) <= 16

    assert most_at_once(run) <= 4


def test_outputs_that_have_gathered_are_read_at_once():
    async def run(read):
        gate = asyncio.Event()

        async def stream(index):
            await gate.wait()
            yield output(index)

        asyncio.get_running_loop().call_later(0.01, gate.set)
        async for one in merged(map(stream, range(NUM_PROMPTS))):
            read.append(one)

    assert most_at_once(run) <= 16


def test_an_error_ends_those_that_have_begun():
    ended = []

    async def stream(index):
        try:
            await asyncio.sleep(0 if index == 5 else 60)
            raise ValueError("the sixth")
            yield output(index)
        finally:
            ended.append(index)

    async def main():
        try:
            async for _ in merged(map(stream, range(NUM_PROMPTS))):
                pass
        except ValueError as error:
            return str(error)

    assert asyncio.run(main()) == "the sixth"
    assert set(range(6)) <= set(ended) and len(ended) == len(set(ended))


def test_prompts_of_many_sequences_are_handed_over_with_pauses(monkeypatch):
    """The engine took 1,024 prompts with n=128 in one go: others' requests waited 0.4 s for it."""
    started, paused = [], []
    sleep = asyncio.sleep

    async def pause(seconds):
        if seconds:
            paused.append(len(started))
        await sleep(0)

    async def stream(index):
        started.append(index)
        yield output(index)

    async def main():
        return [one async for one in merged(map(stream, range(NUM_PROMPTS)), 128)]

    monkeypatch.setattr(generate.asyncio, "sleep", pause)
    assert len(asyncio.run(main())) == len(started) == NUM_PROMPTS
    assert len(paused) == NUM_PROMPTS * 128 // generate.HANDED_AT_ONCE
    assert max(b - a for a, b in zip(paused, paused[1:], strict=False)) <= 4

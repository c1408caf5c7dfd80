"""Fewer events of a stream: when deltas pass, how long one is held, and the same text at last."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter

import pytest

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.server.generation import endpoint as generation_endpoint
from quire.server.generation.pacing import paced

NEVER = 1e6


def delta(num_tokens=1, finished=False, others=()):
    sizes = (num_tokens, *others)
    return RequestOutput(
        request_id="",
        prompt=None,
        prompt_token_ids=[1],
        prompt_logprobs=None,
        outputs=[
            CompletionOutput(index=i, text="", token_ids=[7] * size, logprobs=None)
            for i, size in enumerate(sizes)
        ],
        finished=finished,
    )


async def play(deltas, error=None):
    for item in deltas:
        yield item
    if error is not None:
        raise error


def passed(deltas, interval, error=None, flush_seconds=NEVER):
    """Return how many tokens each prompt had had whenever one passed, and what was raised."""

    async def run():
        found, raised, totals = [], None, Counter()
        try:
            async for index, output in paced(play(deltas, error), interval, flush_seconds):
                totals[index] += len(output.outputs[0].token_ids)
                found.append((index, totals[index]))
        except RuntimeError as caught:
            raised = caught
        return found, raised

    return asyncio.run(run())


def test_a_hundred_tokens_are_twenty_events_and_the_first():
    def deltas():
        return [(0, delta(finished=count == 100)) for count in range(1, 101)]

    found, _ = passed(deltas(), 5)
    assert found == [(0, count) for count in (*range(1, 100, 5), 100)] and len(found) == 21
    assert passed(deltas(), 1)[0] == [(0, count) for count in range(1, 101)]
    assert passed(deltas(), 1000)[0] == [(0, 1), (0, 100)]


def test_each_prompt_and_each_choice_is_counted_for_itself():
    deltas = [(i, delta(finished=count == 4)) for count in range(1, 5) for i in (0, 1)]
    assert passed(deltas, 3)[0] == [(0, 1), (1, 1), (0, 4), (1, 4)]
    deltas = [(0, delta(others=[1])), *((0, delta(0, others=[1])) for _ in range(3))]
    deltas.append((0, delta(0, True, others=[1])))
    assert len(passed(deltas, 3)[0]) == 3, "the second choice grew"


def test_what_is_held_back_comes_before_an_error():
    error = RuntimeError("broken")
    found, raised = passed([(index, delta()) for index in (0, 0, 1, 0)], 9, error)
    assert found == [(0, 1), (1, 1), (0, 3)] and raised is error


def test_what_is_held_back_for_long_is_sent():
    async def run():
        released = asyncio.Event()

        async def outputs():
            yield 0, delta()
            yield 0, delta(2)
            await released.wait()
            yield 0, delta(3, True)

        found = []
        async for _, output in paced(outputs(), 100, 0.01):
            found.append(len(output.outputs[0].token_ids))
            if found[-1] == 2:
                released.set()  # else it would never end
        return found

    assert asyncio.run(run()) == [1, 2, 3]


def test_closing_it_closes_the_source():
    closed = []

    async def outputs():
        try:
            yield 0, delta()
            await asyncio.sleep(NEVER)
        finally:
            closed.append(True)

    async def run():
        stream = paced(outputs(), 5)
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())
    assert closed == [True]


@pytest.mark.parametrize("asked", ["flag", "field"])
def test_a_stream_in_fewer_events_is_the_same_text(serve, engine, monkeypatch, asked):
    patient = functools.partial(paced, flush_seconds=NEVER)
    monkeypatch.setattr(generation_endpoint, "paced", patient)
    client = serve(stream_interval=5) if asked == "flag" else serve()
    engine.text = "abcdefghijklmnopqrs"  # and an end of sequence: 20 tokens
    body = {"prompt": "a", "stream": True, "max_tokens": 100}
    if asked == "field":
        body["stream_interval"] = 5
    texts = [
        json.loads(event.removeprefix("data: "))["choices"][0]["text"]
        for event in client.post("/v1/completions", json=body).text.split("\n\n")[:-2]
    ]
    assert texts == ["a", "bcdef", "ghijk", "lmnop", "qrs"]
    whole = {**body, "stream": False}
    assert client.post("/v1/completions", json=whole).json()["choices"][0]["text"] == engine.text


def test_the_interval_is_checked(client):
    for value in (0, -1, 1.5, "2"):
        answer = client.post("/v1/completions", json={"prompt": "a", "stream_interval": value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "stream_interval"

"""Requests that must be answered in time, on the real engine."""

from __future__ import annotations

import json
import time

import pytest

PATH = "/v1/completions"
LONG = {"prompt": "abc", "max_tokens": 32000, "ignore_eos": True}


@pytest.fixture
def in_time(live, monkeypatch):
    """Return a function that has an hour pass once that many sequences have some tokens each.

    A fraction of a second may be over before the first where other processes have the cores.
    """
    engine = live.service.engine._engine.engine

    def pass_with(num_sequences):
        passed = False

        def clock():
            nonlocal passed
            running = engine.scheduler.running
            num_begun = sum(sequence.num_output_tokens > 1 for sequence in running)
            passed = passed or num_begun >= num_sequences
            return time.monotonic() + 3600 * passed

        monkeypatch.setattr(engine, "_clock", clock)

    yield pass_with
    live.wait_until_idle()


def chunks(text: str) -> list[dict]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("place", ["body", "header"])
def test_what_was_produced_in_time_is_answered(live, in_time, place):
    in_time(1)
    body = {**LONG, "timeout": 600.5} if place == "body" else LONG
    headers = {"x-request-timeout": "600.5"} if place == "header" else {}
    answer = live.http.post(PATH, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert 0 < answer.json()["usage"]["completion_tokens"] < 32000
    in_time(1)
    streamed = live.http.post(PATH, json={**body, "stream": True}, headers=headers)
    assert chunks(streamed.text)[-1]["choices"][0]["finish_reason"] == "timeout"
    assert streamed.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_in_time_is_a_504_and_never_ran(live, stream):
    live.wait_until_idle()
    name = "quire:num_computed_tokens_total"
    before = live.metric(name)
    answer = live.http.post(PATH, json={**LONG, "timeout": 1e-6, "stream": stream})
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "DeadlineExceededError"
    assert live.metric(name) == before
    answer = live.http.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "a"}], "timeout": 1e-6, "stream": stream,
    })  # fmt: skip
    assert answer.status_code == 504


def test_prompts_of_one_request_end_each_for_itself(live, in_time):
    in_time(2)
    body = {**LONG, "prompt": ["a", "b"], "timeout": 600.5}
    choices = live.http.post(PATH, json=body).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["timeout"] * 2


@pytest.mark.parametrize("value", [0, -1, "soon"])
def test_a_wrong_timeout_in_the_body(live, value):
    answer = live.http.post(PATH, json={**LONG, "timeout": value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "timeout"


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_wrong_timeout_in_the_header(live, value):
    answer = live.http.post(PATH, json=LONG, headers={"x-request-timeout": value})
    assert answer.status_code == 400 and "x-request-timeout" in answer.text

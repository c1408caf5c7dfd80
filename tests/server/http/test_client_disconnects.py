"""Clients that come in crowds, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time

import httpx2
import pytest

from quire.server.http.client_disconnects import cancel_on_disconnect
from tests.sizes import sized

ABORTED = 'finished_reason="abort"'
FOREVER = {"prompt": "Once", "max_tokens": 32000, "ignore_eos": True, "temperature": 0}


async def stream_text(client, body):
    text = ""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    return text


async def test_fifty_streams_read_as_alone(live):
    def body(i):
        prompt = f"Request number {i % 7} says {'hello ' * (i % 5)}"
        return {"prompt": prompt, "max_tokens": 5 + i % 11, "temperature": 1.0, "seed": i}

    limits = httpx2.Limits(max_connections=60)
    async with httpx2.AsyncClient(base_url=live.url, timeout=120, limits=limits) as client:
        crowd = await asyncio.gather(*(stream_text(client, body(i)) for i in range(50)))
        for i in range(50):
            answer = await client.post("/v1/completions", json=body(i))
            assert answer.json()["choices"][0]["text"] == crowd[i], i


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_disconnect_frees_everything(live, path, stream, n):
    body = {**FOREVER, "n": n, "stream": stream}
    if path.startswith("/v1/chat"):
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    aborted = live.metric("quire:request_success_total", ABORTED)
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    url = httpx2.URL(live.url)
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        live.wait_until_running(n)
    live.wait_until_idle()
    after = live.metric("quire:request_success_total", ABORTED)
    assert after == aborted + n, "it must not have run to its end"


def test_a_disconnect_ends_all_prompts_of_a_request(live):
    aborted = live.metric("quire:request_success_total", ABORTED)
    body = {**FOREVER, "prompt": ["a", "b", "c"], "stream": True}
    with live.http.stream("POST", "/v1/completions", json=body):
        live.wait_until_running(3)
    live.wait_until_idle()
    assert live.metric("quire:request_success_total", ABORTED) == aborted + 3


async def test_a_coming_and_going_leaves_nothing_behind(live):
    draw = random.Random(5)
    bodies = [
        {
            "prompt": draw.choice(["a", "b c", ["d", "e"]]),
            "max_tokens": draw.randint(1, 300),
            "n": draw.choice([1, 1, 4]),
            "stream": draw.random() < 0.5,
            "ignore_eos": True,
        }
        for _ in range(sized(40, 80))
    ]
    patience = [draw.choice([0.01, 0.03, 0.1, 60]) for _ in bodies]
    gate = asyncio.Semaphore(20)

    async def ask(client, body, seconds):
        async with gate:
            try:
                response = await client.post("/v1/completions", json=body, timeout=seconds)
            except httpx2.TimeoutException:
                return "left"
            assert response.status_code == 200
            assert "error" not in response.text
            return "answered"

    async with httpx2.AsyncClient(base_url=live.url) as client:
        ends = await asyncio.gather(*map(ask, [client] * len(bodies), bodies, patience))
    assert "answered" in ends
    await asyncio.to_thread(live.wait_until_idle)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
def test_a_disconnect_reaches_a_request_without_a_token(client, engine, stream, prompts):
    engine.hold_after = 0
    content = json.dumps({"prompt": ["a"] * prompts, "stream": stream}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    end, url = time.monotonic() + 60, client.base_url
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        while engine.num_held < prompts:
            assert time.monotonic() < end
            time.sleep(0.002)
    while len(engine.ended) < prompts:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert engine.ended == ["closed"] * prompts


def test_a_client_that_leaves_while_it_sends_is_no_error(live, caplog):
    url = httpx2.URL(live.url)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt"'.encode())
    assert live.http.get("/health").status_code == 200
    assert {record.getMessage() for record in caplog.records} <= {"request"}


async def test_work_is_cancelled_and_awaited():
    ended = []

    async def receive():
        return {"type": "http.disconnect"}

    async with cancel_on_disconnect(receive):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(True)
    assert ended == [True]


async def test_work_s_exception_is_passed_on():
    async def receive():
        await asyncio.sleep(60)

    with pytest.raises(ValueError, match="wrong"):
        async with cancel_on_disconnect(receive):
            raise ValueError("wrong")


async def test_a_cancel_from_elsewhere_is_passed_on():
    async def receive():
        await asyncio.sleep(60)

    async def work():
        async with cancel_on_disconnect(receive):
            await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

"""Engines that share experts over HTTP: the answers of one, and one of them killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.llm.replicas.test_shared_experts import PROMPTS
from tests.served_engines import total
from tests.servers import start_server
from tools.serve_process import ServeProcess

FLAGS = ("--threads", "1", "--memory", "256MiB", "--max-num-seqs", "8")
Answer = dict[str, Any] | str


async def ask(client: httpx2.AsyncClient, prompt: list[int], **asked: Any) -> Answer:
    """Return the choice, or the type of the error instead."""
    body = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True, "logprobs": 2, "seed": 7}
    response = await client.post("/v1/completions", json=body | asked)
    found = response.json()
    return found["error"]["type"] if response.is_error else found["choices"][0]


async def ask_all(server: ServeProcess, **asked: Any) -> list[Answer]:
    async with httpx2.AsyncClient(base_url=server.wait_ready(), timeout=60) as client:
        return await asyncio.gather(*(ask(client, prompt, **asked) for prompt in PROMPTS))


def is_healthy(server: ServeProcess) -> bool:
    return httpx2.get(f"{server.address}/health").status_code == 200


async def test_answers_are_those_of_one_engine_before_a_kill_and_after(
    checkpoint: Callable[..., Path],
) -> None:
    arguments = [str(checkpoint("tiny-mixtral")), *FLAGS]
    with start_server(arguments) as one:
        greedy = await ask_all(one, temperature=0)
        drawn = await ask_all(one, temperature=0.9)
    with start_server([*arguments, "-dp", "2", "-ep"]) as server:
        assert await ask_all(server, temperature=0) == greedy
        for way in ("asked", "served"):
            name = "quire:shared_expert_rows_total"
            # What it computed for others since its last step is counted with the next one.
            while not total(server.address, name, engine="1", way=way):
                assert await ask_all(server, temperature=0) == greedy
        engines = server.engines()
        assert len(engines) == 2
        long = asyncio.create_task(ask_all(server, temperature=0, max_tokens=1500))
        running = partial(total, server.address, "quire:num_requests_running", engine="1")
        while not (running() or long.done()):
            await asyncio.sleep(0.05)
        engines[1].kill()
        assert {one for one in await long if isinstance(one, str)} <= {"ServiceUnavailableError"}
        while not is_healthy(server) or len(server.engines()) < 2 or engines[0].is_running():
            await asyncio.sleep(0.1)
        while "ServiceUnavailableError" in (again := await ask_all(server, temperature=0.9)):
            await asyncio.sleep(0.1)
        assert again == drawn
        assert "[experts] engine 1, which has experts 2 to 3, is gone" in server.stderr
        others = psutil.Process(server.popen.pid).children(recursive=True)
        before = len(server.lines)
        assert server.end() == 0
        assert "Traceback" not in "".join(server.lines[before:])
    assert not psutil.wait_procs(others, timeout=60)[1]

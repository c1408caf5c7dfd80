"""Whatever grammars others send, a stream gets all of its tokens and no request a 5xx."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

from tests.servers import start_server
from tests.sizes import sized
from tools.hostile_grammars import KINDS, _bounds, hostile_grammar

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
NUM_TOKENS = sized(1500, 3000)
#: Longer silence of the stream would be a frozen engine, on the slowest of machines too.
SILENT_SECONDS = 20.0
#: The first grammar of each kind; the full form has others of some.
FIRST = {Random(number).choice(KINDS): number for number in reversed(range(100))}
NUMBERS = sorted({*FIRST.values(), *range(sized(0, 2 * len(KINDS)))})


def stream(address: str) -> int:
    """Return the number of an answer's tokens, by its last chunk."""
    body: dict[str, Any] = {
        "messages": HELLO,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = ""
    with (
        httpx2.Client(base_url=address, timeout=SILENT_SECONDS) as client,
        client.stream("POST", CHAT, json=body) as response,
    ):
        for line in response.iter_lines():
            text = line if line.startswith("data: {") else text
    return json.loads(text.removeprefix("data: "))["usage"]["completion_tokens"]


@pytest.mark.slow
def test_a_neighbour_streams_on(folder: Path) -> None:
    """24 of such grammars stopped all streams for 15 seconds, or had the watchdog end them."""
    assert FIRST.keys() == set(KINDS)
    timeout = ["--grammar-compilation-timeout", sized("0.5", "1")]
    flags = ["--memory", "64MiB", "--max-num-seqs", "16", "--threads", "1", *timeout]
    with start_server([str(folder), *flags]) as server, ThreadPoolExecutor(9) as pool:
        address = server.wait_ready()
        neighbour = pool.submit(stream, address)

        def attack(seed: int) -> tuple[int, str]:
            body = {
                "messages": HELLO,
                "max_tokens": 8,
                "structured_outputs": hostile_grammar(seed),
            }
            response = httpx2.post(f"{address}{CHAT}", json=body, timeout=120)
            return response.status_code, response.text

        answers, end = list(pool.map(attack, NUMBERS)), time.monotonic() + 60
        while 200 not in dict(answers):  # a process that compiles steps back: all may be late
            assert time.monotonic() < end, answers
            answers.append(attack(FIRST[_bounds]))
        assert {status for status, _ in answers} == {200, 400}, answers
        refusals = [httpx2.Response(400, text=text).json() for code, text in answers if code == 400]
        assert {r["error"]["param"] for r in refusals} == {"structured_outputs"}
        assert neighbour.result(120) == NUM_TOKENS
        assert "is started again" not in server.stderr
        assert "Traceback" not in server.stderr
        assert server.end() == 0

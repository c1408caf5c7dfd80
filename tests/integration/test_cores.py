"""Cores of a running server that are taken away and given back, as ``taskset -ap`` does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from urllib.request import Request, urlopen

import pytest

from tests.robustness.conftest import wait_for
from tests.servers import start_server

CORES = sorted(os.sched_getaffinity(0))[:2]


def stream(url: str, on_chunk: Callable[[int], None]) -> str:
    """Return the text of one long greedy answer; ``on_chunk`` is told how many chunks there are."""
    fields = {"prompt": "Once", "max_tokens": 600, "stream": True, "temperature": 0}
    body = json.dumps(fields | {"ignore_eos": True}).encode()
    request = Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    text, chunks = "", 0
    with urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                text += choices[0]["text"] if choices else ""
                chunks += 1
                on_chunk(chunks)
    return text


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_stream_goes_on_when_the_servers_cores_change() -> None:
    with start_server(["quire-tiny", "--threads", "2"]) as server:
        url, engine = server.wait_ready(), server.engine().pid

        def threads() -> list[int]:
            return [int(thread) for thread in os.listdir(f"/proc/{engine}/task")]

        def set_cores(cores: list[int]) -> None:
            for thread in threads():
                with suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(thread, cores)

        def allowed() -> set[tuple[int, ...]]:
            found = set()
            for thread in threads():
                with suppress(ProcessLookupError):
                    found.add(tuple(sorted(os.sched_getaffinity(thread))))
            return found

        def change(chunks: int) -> None:
            if chunks % 25 == 0:
                set_cores([CORES[:1], CORES[1:], CORES][chunks // 25 % 3])

        expected = stream(url, lambda chunks: None)
        assert stream(url, change) == expected
        set_cores(CORES)
        assert stream(url, lambda chunks: None) == expected
        # No thread is left on a core that it was helped to, once its last work is done.
        wait_for(lambda: allowed() == {tuple(CORES)})

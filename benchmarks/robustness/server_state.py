"""What a server says of itself: counters, blocks, integrity, memory of its processes."""

from __future__ import annotations

import re
import time

import httpx2

_SAMPLE = re.compile(r"quire:(\w+)\{(.*)\} (\S+)")
_HEAP = re.compile(r'quire:process_heap_bytes\{.*process="(\w+)",state="(\w+)"\} (\S+)')
_REASON = re.compile(r'finished_reason="(\w+)"')
_POOL = re.compile(r"\d+ blocks of \d+ slots: (\d+) used, ")


def counters(client: httpx2.Client) -> dict[str, float]:
    """Return the metrics now; see :func:`parse_counters`."""
    return parse_counters(client.get("/metrics").text)


def parse_counters(text: str) -> dict[str, float]:
    """Return a scrape's metrics by stem; ``request_success`` by ``request_success/<reason>``.

    The series of any other metric with labels of its own are added up.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1].endswith(("_bucket", "_created")):
            continue
        name = sample[1].removesuffix("_total")
        reason = _REASON.search(sample[2])
        key = f"{name}/{reason[1]}" if reason else name
        found[key] = found.get(key, 0.0) + float(sample[3])
    return found


def heaps(client: httpx2.Client) -> dict[str, float]:
    """Return MiB of the C library's heap by process and state, as of its last trim."""
    found = _HEAP.findall(client.get("/metrics").text)
    return {f"{process} {state}": round(float(size) / 2**20, 1) for process, state, size in found}


def num_ended(values: dict[str, float]) -> float:
    """Return how many sequences have ended, whatever the reason."""
    return sum(value for name, value in values.items() if name.startswith("request_success/"))


def wait_until_idle(client: httpx2.Client, seconds: float = 60.0) -> None:
    """Wait until the engine runs nothing and nothing waits, nor is on its way there.

    Raises:
        AssertionError: It has still work after ``seconds``.
    """
    end = time.monotonic() + seconds
    while True:
        pending = client.get("/health/progress").json()["pending"]
        values = counters(client)
        if not (pending or values["num_requests_running"] or values["num_requests_waiting"]):
            return
        assert time.monotonic() < end, f"still at work: {values}"
        time.sleep(0.05)


def cache_state(client: httpx2.Client) -> tuple[int, str]:
    """Return the blocks in use and what the engines say of their pools' integrity."""
    text = client.get("/debug/kv_cache").text
    pools = _POOL.findall(text)
    assert pools, text
    integrity = sorted(set(re.findall(r"^integrity: (.*)$", text, re.MULTILINE)))
    return sum(map(int, pools)), "; ".join(integrity)

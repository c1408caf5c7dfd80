"""Clients that mean no good, one request after the other, next to a server's usual load."""

from __future__ import annotations

import json
import random
import socket
import string
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.robustness import malformed

#: Between two requests, so that the usual load stays most of the load.
PAUSE_SECONDS = 0.02
LETTERS = string.ascii_lowercase + "äöüßéèñøå"


@dataclass
class Disturbed:
    """What was sent and what should not have come back.

    Attributes:
        counts: Requests of each kind.
        wrong: As text.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def disturb(url: str, seconds: float, stopped: threading.Event, *, seed: int = 0) -> Disturbed:
    """Send hostile requests for a time, or until stopped; each kind is as likely as the others."""
    rnd = random.Random(seed)
    seen = Disturbed()
    end = time.perf_counter() + seconds
    with httpx2.Client(base_url=url, timeout=60) as client:
        while time.perf_counter() < end and not stopped.wait(PAUSE_SECONDS):
            kind = rnd.choice(KINDS)
            seen.counts[kind.__name__.strip("_")] += 1
            try:
                problem = kind(client, rnd)
            except (OSError, ValueError, httpx2.HTTPError) as error:
                problem = repr(error)
            if problem is not None:
                seen.wrong.append(f"{kind.__name__}: {problem}"[:300])
    return seen


def _malformed(client: httpx2.Client, rnd: random.Random) -> str | None:
    report = malformed.run(str(client.base_url), 1, seed=rnd.randrange(1 << 30), clients=1)
    return report.wrong[0] if report.wrong else None


def _half(client: httpx2.Client, rnd: random.Random) -> str | None:
    place = (client.base_url.host, client.base_url.port or 80)
    body = json.dumps(malformed.BODIES[malformed.CHAT]).encode()
    head = f"POST {malformed.CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    request = f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body
    with socket.create_connection(place, timeout=60) as connection:
        connection.sendall(request[: rnd.randrange(1, len(request) + 1)])
    return None


def _too_long(client: httpx2.Client, rnd: random.Random) -> str | None:
    text = (" ".join(_word(rnd) for _ in range(30)) + " ") * 400
    return _refused(client, {"messages": [{"role": "user", "content": text}]})


def _new_grammar(client: httpx2.Client, rnd: random.Random) -> str | None:
    body = malformed.BODIES[malformed.CHAT]
    schema = {"type": "object", "properties": {_word(rnd): {"type": "integer"} for _ in range(4)}}
    rule = rnd.choice([{"regex": f"{_word(rnd)}[0-9]{{1,9}}"}, {"json": schema}])
    status = client.post(malformed.CHAT, json=body | {"structured_outputs": rule}).status_code
    return None if status == 200 else f"status {status}"


def _bad_grammar(client: httpx2.Client, rnd: random.Random) -> str | None:
    body = malformed.BODIES[malformed.CHAT]
    rule = rnd.choice([{"regex": f"[{_word(rnd)}"}, {"json": {"type": _word(rnd)}}])
    return _refused(client, body | {"structured_outputs": rule})


def _refused(client: httpx2.Client, body: dict[str, Any]) -> str | None:
    status = client.post(malformed.CHAT, json=body).status_code
    return None if status == 400 else f"status {status}"


def _word(rnd: random.Random) -> str:
    return "".join(rnd.choices(LETTERS, k=rnd.randrange(3, 14)))


KINDS: tuple[Callable[[httpx2.Client, random.Random], str | None], ...] = (
    _malformed, _half, _too_long, _new_grammar, _bad_grammar,
)  # fmt: skip

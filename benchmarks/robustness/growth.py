"""What a server keeps of each request: the same requests part after part, memory in use in between.

The short form of ``scripts/soak``: coarser (a minute cannot see what an hour can), but its limits
hold on a machine that others use as well. Every part is the same work, so caches fill in the first;
a part ends when the server is idle, has collected its garbage and trimmed its heap. What is kept of
each request shows in every part: the least growth of a part counts. Times are for ``scripts/soak``
alone; that a stream decodes in every step is the scheduler's tests'.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.robustness import growth_probe, server_state, soak
from benchmarks.robustness.random_clients import Question, make_questions
from tools.serve_process import ServeProcess

SITE = Path(__file__).parent / "growth_site"
#: Growth of a process that is allowed, of 1,000 requests. Two or three objects of each are kept for
#: half a minute, to say when to try again.
MOST = {"objects": 3500.0, "heap_kib": 128.0, "resident_kib": 512.0}


@dataclass
class Growth:
    """What was seen after each part; see :class:`growth_probe.Look`.

    Attributes:
        looks: By process.
        requests: Of each part.
    """

    looks: list[dict[str, growth_probe.Look]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def of_1000_requests(self) -> dict[str, float]:
        """Return the least growth of a part after the first, by ``<process> <what>``."""
        found = {}
        for process in self.looks[0]:
            for what in MOST:
                parts = self._parts(process, what)[1:]
                steps = zip(parts, self.requests[2:], strict=True)
                found[f"{process} {what}"] = min(1000 * part / count for part, count in steps)
        return found

    def problems(self) -> list[str]:
        """Return what is above its limit, as text."""
        kept = self.of_1000_requests().items()
        return [
            *(f"error: {error}" for error in self.errors[:3]),
            *(f"{name}: {value:.0f}" for name, value in kept if value > MOST[name.split()[1]]),
        ]

    def _parts(self, process: str, what: str) -> list[float]:
        values = [look[process][what] for look in self.looks]
        return [after - before for before, after in zip(values, values[1:], strict=False)]


def run(
    num_parts: int = 5,
    num_requests: int = 150,
    *,
    site: Path = SITE,
    start: Callable[..., ServeProcess] = ServeProcess,
) -> Growth:
    """Run a server under the same requests, part after part.

    Args:
        num_parts: The first fills caches; the others are judged.
        num_requests: Of each part.
        site: Folder whose ``sitecustomize.py`` runs in the server's processes.
        start: Starts the server.
    """
    growth = Growth()
    questions = [
        replace(question, body=question.body | {"max_tokens": min(question.body["max_tokens"], 24)})
        for question in make_questions(random.Random(0), num_requests)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with start(soak.SERVER, **growth_probe.environment(folder, site)) as server:
            url = server.wait_ready()
            ids = {"server": server.popen.pid, "engine": server.engine().pid}
            for part in range(1, num_parts + 1):
                seen = asyncio.run(_ask_all(url, questions))
                with httpx2.Client(base_url=url, timeout=60) as client:
                    server_state.wait_until_idle(client)
                growth.looks.append(growth_probe.look(folder, ids, part))
                growth.requests.append(sum(seen.statuses.values()))
                growth.errors += seen.errors
    return growth


async def _ask_all(url: str, questions: list[Question]) -> soak.Measured:
    seen, rnd, waiting = soak.Measured(), random.Random(0), list(questions)

    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:

        async def client_after_client() -> None:
            while waiting:
                question = waiting.pop()
                await soak.ask(client, rnd, question.body, question.path, seen)

        await asyncio.gather(*(client_after_client() for _ in range(16)))
    return seen


def main() -> None:
    growth = run()
    numbers: dict[str, Any] = growth.of_1000_requests()
    for name, value in numbers.items():
        print(f"{name}: {value:.3f}")
    raise SystemExit(", ".join(growth.problems()))


if __name__ == "__main__":
    main()

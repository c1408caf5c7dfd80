"""``scripts/hostile_pictures``: pictures and URLs that must be refused, sent to a real server.

A tiny LLaVA is served with hosts and a folder allowed. Each case must get a 400 with its reason (a
file with flipped bits may still be a picture), no connection may reach listeners that are not
allowed, memory must not grow, and an honest picture gets the same answer afterwards.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks import results
from benchmarks.robustness import server_state
from benchmarks.robustness.picture_cases import Case, Places, cases
from benchmarks.robustness.picture_web import AllowedWeb, Trap
from tools.hostile_pictures import picture
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

MOST_PICTURES = 4
SETTINGS = (
    *("--memory", "128MiB", "--threads", "1", "--uvicorn-log-level", "critical"),
    *("--limit-mm-per-prompt", f"image={MOST_PICTURES}", "--served-model-name", "llava"),
)
CLIENTS = 4
#: glibc gives back what is freed, so that what a process holds is what it needs.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
#: Growth over the second half of the cases that allocators alone may cause, in MiB.
MOST_GROWTH = 32.0
REQUEST_SECONDS = 60.0


@dataclass
class Outcome:
    """What became of the cases.

    Attributes:
        kinds: Cases by kind.
        statuses: Answers by status.
        wrong: What must not be.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Case, status: int, text: str) -> None:
        """Judge an answer."""
        self.kinds[case.kind] += 1
        self.statuses[status] += 1
        message = _message(text)
        is_refused = status in case.statuses and case.reason in message and "[" in message
        if not is_refused and not (status == 200 and case.may_pass):
            self.wrong.append(f"{case.kind} {case.name}: {status} {text[:300]}")


def _message(text: str) -> str:
    """Return the message of an error in the form of any of the APIs."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error["message"] if isinstance(error, dict) else error)


def ask(client: httpx2.Client, case: Case) -> tuple[int, str]:
    """Send a case; return status and text."""
    try:
        answer = client.post(case.path, json=case.body)
    except httpx2.HTTPError as error:
        return 0, f"{type(error).__name__}: {error}"
    return answer.status_code, answer.text


def rss(server: ServeProcess) -> float:
    """Return MiB of the server's processes together."""
    process = psutil.Process(server.popen.pid)
    found = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            found += one.memory_info().rss / 2**20
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def settled_rss(server: ServeProcess) -> float:
    """Return the least of a second: threads let go of what they read after its answer."""
    found = rss(server)
    for _ in range(5):
        time.sleep(0.2)
        found = min(found, rss(server))
    return found


def honest_answer(client: httpx2.Client) -> list[int]:
    """Return the tokens that a picture gets."""
    url = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part]}], "temperature": 0, "max_tokens": 8}
    answer = client.post("/v1/chat/completions", json={**body, "return_token_ids": True})
    tokens: list[int] = answer.raise_for_status().json()["choices"][0]["token_ids"]
    return tokens


def prepare_folder(folder: Path) -> None:
    """Fill the folder whose files may be read with what must not be read all the same."""
    (folder / "inside").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "text.png").write_text("no picture")
    (folder / "large.png").write_bytes(bytes(21 * 2**20))
    os.mkfifo(folder / "pipe")


def run(num_cases: int, *, seed: int = 0, slow: bool = True, num_parts: int = 10) -> dict[str, Any]:
    """Send hostile pictures to a server; ``wrong`` must be empty.

    Args:
        num_cases: Requests.
        seed: Of what is random in them.
        slow: Whether some servers are so slow that a case takes ten seconds.
        num_parts: After each the memory is looked at, for a second.
    """
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        random_checkpoint(root / "model", PRESETS["tiny-llava"])
        (root / "allowed").mkdir()
        prepare_folder(root / "allowed")
        traps = [stack.enter_context(trap) for trap in Trap.open_all()]
        places = Places(root / "allowed", traps[0].port, MOST_PICTURES)
        web = stack.enter_context(AllowedWeb(places))
        flags = ("--allowed-media-domains", "*", "--allowed-media-domains", web.host)
        flags += ("--allowed-local-media-path", str(root / "allowed"))
        server = stack.enter_context(
            ServeProcess([str(root / "model"), *SETTINGS, *flags], **ALLOCATOR)
        )
        client = stack.enter_context(
            httpx2.Client(base_url=server.wait_ready(), timeout=REQUEST_SECONDS)
        )
        outcome, memory = Outcome(), []
        want = honest_answer(client)
        sent = cases(num_cases, places, web, random.Random(seed), slow=slow)
        begin = time.perf_counter()
        for part in _parts(sent, max(1, num_cases // num_parts)):
            with ThreadPoolExecutor(CLIENTS) as threads:
                answers = threads.map(lambda case: ask(client, case), part)
                for case, answer in zip(part, answers, strict=True):
                    outcome.add(case, *answer)
            memory.append(settled_rss(server))
        seconds = time.perf_counter() - begin
        if honest_answer(client) != want:
            outcome.wrong.append("an honest picture has another answer afterwards")
        server_state.wait_until_idle(client)
        state = server_state.cache_state(client)
        if state != (0, "ok"):
            outcome.wrong.append(f"{state[0]} blocks in use, integrity {state[1]}")
        connections = {trap.name: trap.connections for trap in traps}
        code = server.end()
        if code or "Traceback" in server.stderr:
            outcome.wrong.append(f"exit code {code}: {server.stderr[-3000:]}")
    growth = max(memory[len(memory) // 2 :]) - max(memory[: len(memory) // 2] or memory)
    if growth > MOST_GROWTH:
        outcome.wrong.append(f"memory grew by {growth:.0f} MiB: {memory}")
    if any(connections.values()):
        outcome.wrong.append(f"connections that were not allowed: {connections}")
    return {
        "cases": sum(outcome.kinds.values()),
        "kinds": dict(sorted(outcome.kinds.items())),
        "statuses": {str(status): count for status, count in sorted(outcome.statuses.items())},
        "seconds": round(seconds, 1),
        "memory_mib": [round(size, 1) for size in memory],
        "growth_mib": round(growth, 1),
        "connections_not_allowed": connections,
        "connections_allowed": web.connections,
        "wrong": outcome.wrong,
    }


def _parts(sent: list[Case], size: int) -> Iterator[list[Case]]:
    return (sent[start : start + size] for start in range(0, len(sent), size))


def main() -> None:
    """Run, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=520, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    outcome = run(arguments.cases, seed=arguments.seed)
    print(json.dumps(outcome, indent=1))
    if not arguments.no_result:
        print(results.write("hostile_pictures", outcome, server=" ".join(SETTINGS)).name)
    sys.exit(1 if outcome["wrong"] else 0)


if __name__ == "__main__":
    main()

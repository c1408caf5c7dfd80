"""``scripts/model_chaos``: models loaded, unloaded, pulled, removed and killed while others ask.

A server has four models on a stand-in hub, presets of two of them, and memory for two. Clients in
every shape ask, leave, load and unload; others pull, create and remove, through the server and as
processes of their own; engines and pulls are killed. Each answer must be the one that the model
gives alone, each refusal say why; the memory of those that are loaded must stay within the budget;
and afterwards nothing is left.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import results
from benchmarks.robustness import growth_probe
from benchmarks.robustness.growth import SITE
from benchmarks.robustness.model_clients import SHAPES, ask, texts_alone
from benchmarks.robustness.model_operations import (
    SYSTEM,
    TIMEOUT,
    Actor,
    Report,
    Site,
    create_body,
    judge,
)
from quire.kernels.cpu.measured_once import FILE
from quire.planner.memory_needs import PROCESS_BYTES
from quire.server.generation.pulls import MAX_PULLS
from quire.server.registry.model_table import HOLDING, RETRY_SECONDS
from tests.preforked import children
from tests.store.hub_stand_in import HubStandIn, serving
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

NAMES = ("org/one", "org/two", "org/three", "org/four")
#: Presets, each with its base.
BASES = {f"{name}-brief": name for name in NAMES[:2]}
#: Two of them fit.
BUDGET_BYTES = 420 * 2**20
KEEP_ALIVE = 1.0
SERVER = (
    *("--load-on-demand", "--memory", str(BUDGET_BYTES), "--keep-alive", str(KEEP_ALIVE)),
    *("--load-wait", "30", "--threads", "1", "--max-num-seqs", "4"),
)
#: Seconds between 1,000 bytes of the hub: a pull takes a third of a second.
PAUSE = 0.0004
SAMPLE_SECONDS = 0.1
IDLE_SECONDS = 60.0
CLOSING_SECONDS = 2.0
#: In which a model can be asked: shapes, whole and streamed.
WAYS = tuple(itertools.product(SHAPES, (False, True)))
NUM_PARTS = 5
#: Operations of a run at most, so that no two seeds share one.
SEED_STEP = 1_000_000
#: Pools of threads that grow as they are needed: asyncio's, and that of pulls.
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4) + MAX_PULLS
#: Of the server in a part of 100 operations; what each operation leaves shows in every part.
MOST_GROWTH = {"objects": 1000.0, "heap_kib": 256.0, "resident_kib": 512.0}


@dataclass
class Watch:
    """What was seen of the server's memory and processes while it worked.

    Attributes:
        most_models: That were in memory at once.
        most_reserved: Bytes that the models take by their own account, at most.
        most_resident: Bytes of the engines' processes, at most.
        engines: Every engine that was seen.
        num_samples: How often it was looked.
    """

    most_models: int = 0
    most_reserved: int = 0
    most_resident: int = 0
    engines: set[psutil.Process] = field(default_factory=set)
    num_samples: int = 0

    def look(self, client: httpx2.Client, server: ServeProcess, reserved: int) -> None:
        """Look once; ``reserved`` is what one model takes."""
        engines, resident = server.engines(), 0
        for engine in engines:
            with suppress(psutil.Error):
                resident += engine.memory_info().rss
        found = states(client).items()
        # A preset and its base have one engine.
        held = {BASES.get(name, name) for name, state in found if state in HOLDING}
        self.most_models = max(self.most_models, len(held), len(engines))
        self.most_reserved = max(self.most_reserved, len(held) * reserved)
        self.most_resident = max(self.most_resident, resident)
        self.engines.update(engines)
        self.num_samples += 1


def states(client: httpx2.Client) -> dict[str, str]:
    """Return the state of each model."""
    listed = client.get("/models").json()["data"]
    return {model["id"]: model["status"]["value"] for model in listed}


@contextmanager
def watching(site: Site, reserved: int) -> Iterator[Watch]:
    """Look again and again inside the block."""
    watch, ended = Watch(), threading.Event()

    def run() -> None:
        with httpx2.Client(base_url=site.server.address, timeout=TIMEOUT) as client:
            while not ended.wait(SAMPLE_SECONDS):
                watch.look(client, site.server, reserved)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(run)
        try:
            yield watch
        finally:
            ended.set()
    looking.result()


@contextmanager
def site(
    folder: Path,
    flags: tuple[str, ...] = (),
    spawn: Callable[..., Any] = subprocess.Popen,
) -> Iterator[Site]:
    """Start a server with a store of its own, below ``folder``, and a hub that has the models.

    ``spawn`` starts processes, as ``subprocess.Popen`` does.
    """
    repositories, texts = {}, {}
    for seed, name in enumerate(NAMES):
        path = folder / name
        random_checkpoint(path, PRESETS["tiny-llama"], seed=seed)
        repositories[name] = {file.name: file.read_bytes() for file in path.iterdir()}
        texts[name] = texts_alone(path)
        texts |= {preset: texts_alone(path, SYSTEM) for preset in BASES if BASES[preset] == name}
    different = {text for own in texts.values() for text in own.values()}
    assert len(different) == 2 * len(NAMES) + len(BASES), "a preset completes as its base does"
    with serving(HubStandIn(repositories, pause=PAUSE)) as hub:
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "",
            "NO_PROXY": "*",
            "HF_HOME": str(folder / "hub"),
            "QUIRE_CACHE": str(folder / "cache"),
        }
        probed = growth_probe.environment(folder, SITE)
        with ServeProcess([*SERVER, *flags], spawn=spawn, **environment, **probed) as server:
            server.wait_ready()
            yield Site(server, folder, environment, texts, BASES, spawn)


def run(
    place: Site,
    num_operations: int,
    *,
    num_parts: int = NUM_PARTS,
    num_actors: int = 6,
    num_asked: int = len(WAYS),
    seed: int = 0,
) -> dict[str, Any]:
    """Have actors work on an idle server; return what was seen; ``wrong`` must be empty.

    Before and afterwards every model is asked in ``num_asked`` ways.

    The server ends. After each part of the operations it is idle, and looked at.
    """
    report, looks = Report(), []
    server = place.server
    started = time.perf_counter()
    with httpx2.Client(base_url=server.address, timeout=TIMEOUT) as client, Progress() as progress:
        ask_each(place, client, report, num_asked)
        reserved = reserved_bytes(client)
        task = progress.add_task("operations", total=num_operations)
        with watching(place, reserved) as watch:
            for part in range(num_parts):
                actors = [Actor(place, report) for _ in range(num_actors)]
                seeds = range(seed * SEED_STEP + part, seed * SEED_STEP + num_operations, num_parts)
                _act(actors, seeds, lambda: progress.advance(task))
                report.wrong += wait_until_idle(client, server)
                looks.append(look_at(place, part + 1, looks[0]["descriptors"] if looks else 0.0))
        time.sleep(RETRY_SECONDS)  # for as long, a model is refused whose load was killed
        ask_each(place, client, report, num_asked)
        remove_all(client, report)
        report.wrong += wait_until_idle(client, server)
    code = server.end()
    growth = growth_of_100(looks, num_operations / num_parts)
    if num_parts >= NUM_PARTS:  # caches fill in the first ones
        report.wrong += [f"{k}: {v:.0f}" for k, v in growth.items() if v > MOST_GROWTH[k]]
    report.wrong += _problems(watch, looks, server, code)
    report.wrong += left_in_store(place.folder)
    return {
        "operations": dict(report.operations),
        "outcomes": dict(sorted(report.outcomes.items())),
        "reasons": dict(report.reasons.most_common()),
        "seconds": round(time.perf_counter() - started, 1),
        "budget_mib": BUDGET_BYTES >> 20,
        "most_reserved_mib": watch.most_reserved >> 20,
        "most_resident_mib": watch.most_resident >> 20,
        "most_models_in_memory": watch.most_models,
        "engines_seen": len(watch.engines),
        "samples": watch.num_samples,
        "server_after_each_part": looks,
        "growth_of_100_operations": growth,
        "exit_code": code,
        "wrong": report.wrong,
    }


def _act(actors: list[Actor], seeds: range, advance: Callable[[], None]) -> None:
    """Have the actors do a thing for each seed, together; which of them does it is chance."""
    left, lock = iter(seeds), threading.Lock()

    def work(actor: Actor) -> None:
        while True:
            with lock:
                seed = next(left, None)
            if seed is None:
                break
            actor.act(seed)
            advance()
        actor.close()

    with ThreadPoolExecutor(len(actors)) as pool:
        for working in [pool.submit(work, actor) for actor in actors]:
            working.result()


def ask_each(place: Site, client: httpx2.Client, report: Report, num_asked: int) -> None:
    """Have every model and ask it in as many ways, one after the other: all must answer.

    Each goes on with the ways where the one before it ended.
    """
    ways = itertools.cycle(WAYS)
    for name in place.names:
        if name in BASES:
            had = client.post("/api/create", json=create_body(name, BASES[name]))
        else:
            had = client.post("/api/pull", json={"model": name, "stream": False})
        if had.status_code != 200:
            report.wrong.append(f"have {name}: {had.text}")
        for shape, stream in itertools.islice(ways, num_asked):
            answer = ask(client, name, shape, stream=stream)
            problem = judge(answer, name, place.texts[name][shape.question])
            if answer.error or problem:
                report.wrong.append(f"alone {shape.path} {name}: {problem}: {answer}")


def remove_all(client: httpx2.Client, report: Report) -> None:
    """Remove every model."""
    for name in (*BASES, *NAMES):
        removed = client.request("DELETE", "/api/delete", json={"model": name})
        if removed.status_code != 200:
            report.wrong.append(f"delete {name}: {removed.text}")


def reserved_bytes(client: httpx2.Client) -> int:
    """Return what a loaded model takes: its pools and its process."""
    last: list[str] = []
    while not last:
        ask(client, NAMES[-1], SHAPES[0], stream=False)  # it goes when it is not asked for a while
        lines = client.get("/metrics").text.splitlines()
        pools = [line for line in lines if line.startswith("quire:memory_bytes{")]
        last = [line for line in pools if f'"{NAMES[-1]}"' in line]
    return PROCESS_BYTES + int(sum(float(line.rpartition(" ")[2]) for line in last))


def models_processes(server: ServeProcess) -> list[psutil.Process]:
    """Return the processes of a server but those that render templates, which all models share."""
    running = children(psutil.Process(server.popen.pid), recursive=True)
    return [one for one in running if not "template_sandbox".endswith(one.name())]


def wait_until_idle(client: httpx2.Client, server: ServeProcess) -> list[str]:
    """Wait until all models are unloaded; return what is left after a minute, as text."""
    end = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end:
        loaded = {name: state for name, state in states(client).items() if state != "absent"}
        failed = all(state == "failed" for state in loaded.values())
        running = models_processes(server)
        if failed and not running:
            return []
        time.sleep(0.05)
    return [f"left when all is idle: {loaded} {running}"]


def look_at(place: Site, number: int, wanted: float) -> dict[str, float]:
    """Return what the idle server holds; ``number`` is greater each time.

    Connections end a moment after their clients, and the one that watches comes and goes: of
    descriptors the fewest that were seen count, those ``wanted`` as soon as they are.
    """
    process = psutil.Process(place.server.popen.pid)
    ids, descriptors = {"server": process.pid}, process.num_fds()
    end = time.monotonic() + (IDLE_SECONDS if wanted else CLOSING_SECONDS)
    while descriptors > wanted and time.monotonic() < end:
        time.sleep(0.05)
        descriptors = min(descriptors, process.num_fds())
    return {
        "threads": process.num_threads(),
        "descriptors": descriptors,
        **growth_probe.look(place.folder, ids, number)["server"],
    }


def growth_of_100(looks: list[dict[str, float]], count: float) -> dict[str, float]:
    """Return the least growth of a part of ``count`` operations after the first, per 100."""
    steps = list(zip(looks, looks[1:], strict=False))
    return {name: min(b[name] - a[name] for a, b in steps) * 100 / count for name in MOST_GROWTH}


def _problems(
    watch: Watch, looks: list[dict[str, float]], server: ServeProcess, code: int
) -> list[str]:
    """Return what is wrong with what was seen."""
    found = []
    if max(watch.most_reserved, watch.most_resident) > BUDGET_BYTES:
        found.append(f"over the budget: {watch.most_reserved} {watch.most_resident}")
    orphans = [engine for engine in watch.engines if engine.is_running()]
    if orphans:
        found.append(f"engines that outlive the server: {orphans}")
    most = {"threads": looks[0]["threads"] + POOL_THREADS, "descriptors": looks[0]["descriptors"]}
    for what, allowed in most.items():
        if looks[-1][what] > allowed:
            found.append(f"{what}: {[look[what] for look in looks]}, at most {allowed}")
    if code:
        found.append(f"exit code {code}")
    if "Traceback" in server.stderr:
        found.append(server.stderr[server.stderr.index("Traceback") :][:3000])
    return found


def left_in_store(folder: Path) -> list[str]:
    """Return the files of caches whose models were all removed.

    But for the library's own marks and what was measured of the processor.
    """
    found = []
    for path in [*(folder / "hub").rglob("*"), *(folder / "cache").rglob("*")]:
        mine = path.relative_to(folder)
        marks = {".locks", "refs", "trees"}.intersection(mine.parts)
        if not path.is_dir() and not marks and path.name not in ("CACHEDIR.TAG", FILE):
            found.append(f"left in the store: {mine}")
    return found


def main() -> None:
    """Run it and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=500)
    parser.add_argument("--actors", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    logging.getLogger("quire").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as place:
        outcome = run(place, arguments.operations, num_actors=arguments.actors, seed=arguments.seed)
    table = Table("what", "value")
    for name, value in outcome.items():
        lines = value[:20] if isinstance(value, list) else [value]
        if isinstance(value, dict):
            lines = [f"{count} × {key}" for key, count in value.items()]
        if name != "wrong":
            table.add_row(name, "\n".join(map(str, lines)))
    Console().print(table)
    for line in outcome["wrong"]:
        print(f"wrong: {line}")
    if not arguments.no_result:
        print(f"written: {results.write('model_chaos', outcome, server=' '.join(SERVER)).name}")
    sys.exit(1 if outcome["wrong"] else 0)


if __name__ == "__main__":
    main()

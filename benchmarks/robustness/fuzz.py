"""``scripts/fuzz``: malformed requests, and schemathesis over the OpenAPI document."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.robustness import malformed, server_state
from tools.serve_process import ServeProcess

ROOT = Path(__file__).parents[2]
#: A short context, so that an answer without a limit is short too.
SERVER = (
    *("--memory", "64MiB", "--threads", "1", "--max-model-len", "128"),
    *("--uvicorn-log-level", "critical", "--scheduling-policy", "priority"),
)
REQUEST_SECONDS = 60
CHECKS = "honest_status,error_body,response_schema_conformance,content_type_conformance"


def run_schemathesis(url: str, max_examples: int, phases: str) -> dict[str, Any]:
    """Run schemathesis' command; return its counts and, when it found something, its words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.ndjson"
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            *("--checks", CHECKS, "--max-examples", str(max_examples)),
            *("--phases", phases, "--no-shrink", "--no-color"),
            *("--request-timeout", str(REQUEST_SECONDS), "--generation-deterministic"),
            *("--report-ndjson-path", str(report), "--suppress-health-check", "all"),
            *("--warnings", "off"),
        ]
        environment = os.environ | {
            "SCHEMATHESIS_HOOKS": "benchmarks.robustness.schemathesis_hooks",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        statuses = _statuses(report)
    return {
        "cases": sum(statuses.values()),
        "statuses": statuses,
        "exit_code": done.returncode,
        "findings": "" if done.returncode == 0 else (done.stdout + done.stderr)[-6000:],
    }


def _statuses(report: Path) -> dict[str, int]:
    """Count the answers in a report of schemathesis, by status."""
    counted: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            if "status_code" in node and "headers" in node:
                status = str(node["status_code"])
                counted[status] = counted.get(status, 0) + 1
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    for line in report.read_text().splitlines():
        visit(json.loads(line))
    return dict(sorted(counted.items()))


def run(
    num_malformed: int,
    max_examples: int,
    *,
    phases: str = "coverage,fuzzing",
    seed: int = 0,
    start: Callable[..., ServeProcess] = ServeProcess,
) -> dict[str, Any]:
    """Fuzz a server of quire-tiny; ``wrong`` must be empty.

    Args:
        num_malformed: Malformed requests.
        max_examples: Cases of schemathesis for each route in its fuzzing phase.
        phases: Of schemathesis.
        seed: Of the malformed requests.
        start: Starts the server.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        # Some routes change what models there are: none of this machine's.
        start(SERVER, QUIRE_CACHE=folder, HF_HOME=folder, HF_HUB_OFFLINE="1") as server,
    ):
        url = server.wait_ready()
        started = time.perf_counter()
        broken = malformed.run(url, num_malformed, seed=seed)
        middle = time.perf_counter()
        checked = run_schemathesis(url, max_examples, phases)
        end = time.perf_counter()
        wrong = list(broken.wrong)
        if checked["exit_code"]:
            wrong.append(checked["findings"])
        with httpx2.Client(base_url=url, timeout=60) as client:
            server_state.wait_until_idle(client)
            blocks_used, integrity = server_state.cache_state(client)
            restarts = server_state.counters(client)["engine_restarts"]
        if (blocks_used, integrity, restarts) != (0, "ok", 0):
            wrong.append(f"{blocks_used} blocks in use, integrity {integrity}, {restarts} restarts")
        exit_code = server.end()
        if exit_code or "Traceback" in server.stderr:
            wrong.append(f"exit code {exit_code}: {server.stderr[-3000:]}")
    return {
        "malformed": {
            "requests": num_malformed,
            "seconds": round(middle - started, 1),
            "statuses": {str(k): v for k, v in sorted(broken.statuses.items())},
            "kinds": dict(broken.kinds),
        },
        "schemathesis": checked | {"seconds": round(end - middle, 1)},
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--malformed", type=int, default=10_000, help="requests")
    parser.add_argument("--max-examples", type=int, default=150, help="for each route")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    outcome = run(arguments.malformed, arguments.max_examples, seed=arguments.seed)
    table = Table("what", "value")
    for name, value in outcome.items():
        text = str(value) if name != "wrong" else "\n".join(value[:10]) or "nothing"
        table.add_row(name, text)
    Console().print(table)
    if not arguments.no_result:
        print(f"written: {results.write('fuzz', outcome, server=' '.join(SERVER)).name}")
    sys.exit(1 if outcome["wrong"] else 0)


if __name__ == "__main__":
    main()

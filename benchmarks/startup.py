"""Start times as a user sees them: ``--help``, a process to its first token, ``quire run``.

Each repeat starts a new process; the page cache is warm and modules are compiled, as on a second
start. ``quire run`` is timed to the first byte of its answer, without a server and with one that
has the model loaded.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import results

FIRST_TOKEN = (
    "from quire import LLM, SamplingParams; "
    "LLM().generate('Once', SamplingParams(temperature=0, max_tokens=1))"
)
QUIRE = [sys.executable, "-m", "quire"]
COLD, RUNNING = "quire run smollm2, no server", "quire run smollm2, running server"
LIMITS = {"quire --help": 0.3, "quire-tiny to the first token": 2.0, COLD: 1.5, RUNNING: 0.3}
#: Not measured: what Ollama's documentation shows, load_duration + prompt_eval_duration of its
#: example answers, of an unnamed machine and a server that runs. Source: docs/api.md of
#: ollama/ollama at fb30760.
DOCUMENTED = {
    "ollama, model not loaded: llama3.2 (3B)": [6.468, 0.642, 3.111, 0.799],
    "ollama, model not loaded: mistral (7B)": [6.709],
    "ollama, model loaded: llama3.2 (3B)": [0.331, 0.443, 0.344, 0.066, 0.386, 0.405, 0.332],
}


def whole(command: list[str]) -> float:
    """Return the seconds of a command."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def first_byte(port: int) -> float:
    """Return the seconds of ``quire run`` until its answer begins."""
    command = [*QUIRE, "run", "smollm2", "Say hi.", "--base-url", f"http://127.0.0.1:{port}"]
    begin = time.perf_counter()
    with subprocess.Popen(
        [*command, "--max-tokens", "4"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        byte = os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode or not byte:
        raise SystemExit("quire run smollm2 has failed; `quire pull smollm2` first")
    return seconds


def end_server(port: int) -> None:
    """End the server that ``quire run`` started."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if command[-2:] == ["--port", str(port)] and "serve" in command:
            process.terminate()
            with suppress(psutil.TimeoutExpired):
                process.wait(30)


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each case, measured in turn."""
    port = free_port()

    def cold() -> float:
        end_server(port)
        return first_byte(port)

    cases: dict[str, Callable[[], float]] = {
        "quire --help": lambda: whole([*QUIRE, "--help"]),
        "quire-tiny to the first token": lambda: whole([sys.executable, "-c", FIRST_TOKEN]),
        COLD: cold,
        RUNNING: lambda: first_byte(port),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles every module
    try:
        for turn in range(repeats + 1):
            for name, case in cases.items():
                taken = case()
                if turn:  # the first one warms up
                    seconds[name].append(taken)
    finally:
        end_server(port)
    return {name: results.summary(taken) for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    timed = measure(parser.parse_args().repeats)
    table = Table("start", "median s", "min..max", "limit s")
    for name, limit in LIMITS.items():
        row = timed[name]
        table.add_row(
            name, f"{row['median']:.2f}", f"{row['min']:.2f}..{row['max']:.2f}", str(limit)
        )
    for name, shown in DOCUMENTED.items():
        table.add_row(f"documented: {name}", "", f"{min(shown):.2f}..{max(shown):.2f}", "")
    Console().print(table)
    rows = {name: {**timed[name], "limit_seconds": limit} for name, limit in LIMITS.items()}
    documented = {name: {"documented_seconds": shown} for name, shown in DOCUMENTED.items()}
    print(f"written: {results.write('startup', rows | documented).name}")


if __name__ == "__main__":
    main()

"""What ranks of one machine pay to exchange a step's arrays: shared memory, and gloo, in one run.

    python -m benchmarks.collectives

Two processes of one thread each take turns with both transports, case after case. ``gloo`` is
torch's own collective; ``messages`` is what Quire makes of gloo between machines, where parts have
any size and sums the order of ranks. Arrays are those of a model of 2048 dims and an MLP of 8192.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire.distributed.group import Group
from quire.distributed.shared_memory_group import SharedMemory
from quire.distributed.torch_group import TorchWorld

DIM, MLP = 2048, 8192
ROWS = {"decode": 1, "decode of 8": 8, "prefill of 2048": 2048}
#: Calls of one row that are timed together, some milliseconds.
TIMES = {"shared memory": 4000, "gloo": 50, "messages": 50}
RANKS = 2
Call = Callable[[], Any]


def group_calls(group: Group, rows: int) -> dict[str, Call]:
    """Return the calls of a step of ``rows`` tokens."""
    x = np.zeros((rows, DIM), np.float32)
    found: dict[str, Call] = {"all_reduce": lambda: group.all_reduce(x)}
    for name, width in (("gather of dims", DIM), ("gather of the MLP", MLP)):
        part = np.ones((rows, width // RANKS), np.float32)
        out = np.empty((rows, width), np.float32)
        widths = [width // RANKS] * RANKS
        found[name] = lambda part=part, out=out, widths=widths: group.all_gather_columns(
            part, widths, out
        )

    def hand_over() -> None:
        """To the next stage and back."""
        if group.rank == 0:
            group.send(x, 1)
            group.recv(x, 1)
        else:
            group.recv(x, 0)
            group.send(x, 0)

    found["to the next stage and back"] = hand_over
    return found


def gloo_calls(rows: int) -> dict[str, Call]:
    """Return torch's own collectives of the same arrays."""
    import torch
    import torch.distributed as dist

    x = torch.ones(rows, DIM)
    found: dict[str, Call] = {"all_reduce": lambda: dist.all_reduce(x)}
    for name, width in (("gather of dims", DIM), ("gather of the MLP", MLP)):
        part = torch.ones(rows, width // RANKS)
        parts = [torch.empty_like(part) for _ in range(RANKS)]
        out = torch.empty(rows, width)

        def gather(
            part: Any = part, parts: list[Any] = parts, out: Any = out
        ) -> None:  # columns, as a linear's outputs lie
            dist.all_gather(parts, part)
            torch.cat(parts, dim=1, out=out)

        found[name] = gather
    return found


def timed(
    group: Group, cases: dict[str, tuple[Call, int]], repeats: int
) -> dict[str, dict[str, float]]:
    """Return a summary of each case's seconds a call; the cases take turns.

    Args:
        group: Its ranks begin each measurement together.
        cases: A call, and how many of it are one measurement.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(repeats + 2):
        for name, (call, times) in cases.items():
            group.any(False)
            start = time.perf_counter()
            for _ in range(times):
                call()
            if index >= 2:
                found[name].append((time.perf_counter() - start) / times)
    return {name: results.summary(seconds) for name, seconds in found.items()}


def measure(memory: SharedMemory, world: TorchWorld, repeats: int) -> list[dict[str, Any]]:
    """Return seconds of each case by transport; both ranks call this."""
    import torch

    torch.set_num_threads(1)
    found = []
    shared, messages = memory.group(), world.group()
    for step, rows in ROWS.items():
        transports = {
            "shared memory": group_calls(shared, rows),
            "gloo": gloo_calls(rows),
            "messages": group_calls(messages, rows),
        }
        for case in transports["shared memory"]:
            cases = {
                name: (calls[case], max(1, TIMES[name] // rows))
                for name, calls in transports.items()
                if case in calls
            }
            seconds = timed(shared, cases, repeats)
            found.append({"step": step, "rows": rows, "case": case, "seconds": seconds})
    found.append(measure_commands(memory, repeats))
    return found


def measure_commands(memory: SharedMemory, repeats: int) -> dict[str, Any]:
    """Return seconds of a command of 2 KB to the worker, and its word that it has come."""
    group, commands, word = memory.group(), memory.commands(), np.zeros(1, np.int32)
    command = bytes(2048)

    def tell() -> None:
        if group.rank == 0:
            commands.send([command])
            group.recv(word, 1)
        else:
            commands.receive()
            group.send(word, 0)

    seconds = timed(group, {"shared memory": (tell, TIMES["shared memory"])}, repeats)
    return {"step": "decode", "rows": 1, "case": "command and answer", "seconds": seconds}


def run_rank(arguments: argparse.Namespace) -> None:
    memory = SharedMemory.attach(arguments.descriptor, arguments.rank)
    world = TorchWorld("127.0.0.1", arguments.port, arguments.rank, RANKS)
    found = measure(memory, world, arguments.repeats)
    if arguments.rank == 0:
        print(json.dumps(found))
    world.close()
    memory.close()


def run_world(repeats: int) -> list[dict[str, Any]]:
    """Start both ranks and return what they measured."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    memory = SharedMemory.create(RANKS)
    command = [sys.executable, "-m", "benchmarks.collectives", "--repeats", str(repeats)]
    command += ["--descriptor", str(memory.descriptor), "--port", str(port), "--rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], pass_fds=[memory.descriptor], stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    told = [rank.communicate()[0] for rank in ranks]
    memory.close()
    found: list[dict[str, Any]] = json.loads(told[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--descriptor", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    found = run_world(arguments.repeats)
    table = Table("step", "case", "shared memory µs", "gloo µs", "ratio", "messages µs")
    for row in found:
        micros = {name: one["median"] * 1e6 for name, one in row["seconds"].items()}
        if "gloo" in micros:
            row["times_faster_than_gloo"] = micros["gloo"] / micros["shared memory"]
        table.add_row(
            row["step"],
            row["case"],
            f"{micros['shared memory']:.1f}",
            f"{micros['gloo']:.1f}" if "gloo" in micros else "",
            f"{row['times_faster_than_gloo']:.1f}" if "gloo" in micros else "",
            f"{micros['messages']:.1f}" if "messages" in micros else "",
        )
    Console().print(table)
    if not arguments.no_result:
        name = results.per_processor("collectives")
        print(f"written: {results.write(name, found, ranks=RANKS).name}")


if __name__ == "__main__":
    main()

"""``quire doctor``: what the machine and the installation give, measured where that says more."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import click

import quire
from quire.cli.version import commit
from quire.core.errors import QuireError
from quire.planner import machine_speed
from quire.planner.machine_speed import MachineSpeed
from quire.system import env
from quire.system.machine import read_machine
from quire.system.processor import name_processor

#: What more packages would give: extra -> (module it needs, what for).
EXTRAS = {
    "quantize": ("torch", "quantizing models, --device reference"),
    "train": ("torch", "training"),
}
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

#: Columns of a report that goes into a file.
FILE_WIDTH = 200

Report = dict[str, dict[str, Any]]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--measure/--no-measure", default=True, help="Measure memory and compute speed.")
def doctor(as_json: bool, measure: bool) -> None:
    """Show what this machine gives Quire: kernels, measured speed, and what is missing.

    Exit code 1 means that models cannot run here; the report says why.
    """
    report = {
        "software": _software(),
        "machine": _machine(),
        "native": _native(measure),
        "model": _model(),
        "extras": _extras(),
        "environment": {name: env.get(name) for name in env.VARIABLES if name != "QUIRE_API_KEY"},
    }
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if "error" in report["native"] or "error" in report["model"]:
        raise click.exceptions.Exit(1)


def _software() -> dict[str, Any]:
    found: dict[str, Any] = {
        "quire": quire.__version__,
        "commit": commit(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in ("numpy", "tokenizers", "starlette"):
        found[name] = importlib.metadata.version(name)
    return found


def _machine() -> dict[str, Any]:
    machine = read_machine()
    return {
        "cpu": name_processor(),
        "cores in the machine": os.cpu_count(),
        "cores for Quire": machine.num_cores,
        "memory, GiB": round(machine.total_bytes / 2**30, 1),
        "available, GiB": round(machine.free_bytes / 2**30, 1),
        "huge pages": _huge_pages(),
    }


def _huge_pages() -> str:
    try:
        # The choice in force is the one in brackets.
        return HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "unknown"


def _native(measure: bool) -> dict[str, Any]:
    try:
        from quire.kernels.cpu.backend import CpuBackend
        from quire.kernels.cpu.native import native
    except QuireError as error:
        return {"error": str(error)}
    backend = CpuBackend(read_machine().num_cores)
    found = {
        "instruction set": native.isa(),
        "available": native.available_isas(),
        "threads": native.num_threads(),
        **backend.kernel_names(),
    }
    if measure:
        speed = MachineSpeed(
            native.measure_read(), native.measure_fma(), native.measure_dot(), native.measure_int8()
        )
        machine_speed.remember(speed)
        found |= _speed(speed)
    return found


def _speed(speed: MachineSpeed) -> dict[str, Any]:
    """Return rates, and where memory stops to bind: in operations a byte and in rows of a step."""
    kinds = {"float32": speed.float32, "bfloat16": speed.bfloat16, "int8": speed.int8}
    ridges = [f"{name} {speed.ridge(peak):.0f}" for name, peak in kinds.items() if peak]
    rows = [f"{speed.rows_at_ridge(bits):.0f} ({bits} bits)" for bits in (16, 8, 4)]
    return {
        "memory read, GB/s": round(speed.read / 1e9, 1),
        "float32, GFLOP/s": round(speed.float32 / 1e9, 1),
        "bfloat16, GFLOP/s": round(speed.bfloat16 / 1e9, 1) or "no instruction",
        "int8, GOP/s": round(speed.int8 / 1e9, 1) or "no instruction",
        "ridge, operations a byte": ridges,
        "memory binds steps below, rows": rows,
    }


def _model() -> dict[str, Any]:
    from quire.store.hub import resolve_model

    try:
        return {"quire-tiny": str(resolve_model("quire-tiny"))}
    except QuireError as error:
        return {"error": str(error)}


def _extras() -> dict[str, Any]:
    return {
        name: f"{use}: {'installed' if importlib.util.find_spec(module) else f'needs {module}'}"
        for name, (module, use) in EXTRAS.items()
    }


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    # Paths and kernels are copied from here into reports: folded where they must be, never cut.
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for section, rows in report.items():
        for i, (name, value) in enumerate(rows.items()):
            shown = ", ".join(value) if isinstance(value, list) else value
            style = "red" if name == "error" else None
            table.add_row(section if i == 0 else "", name, str(shown or "-"), style=style)
        table.add_section()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    console.print(table)

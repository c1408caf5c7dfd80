"""Bars of the stages of long work: on a terminal's stderr, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Between two lines where there is no terminal.
LINE_SECONDS = 30.0


@contextmanager
def stage_bar(label: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """Show one stage; yield what takes how much more is done, and a remark."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=total, remark="")
            yield lambda amount, remark: bar.update(task, advance=amount, remark=remark)
        return
    done, shown = 0.0, time.monotonic()

    def advance(amount: float, remark: str) -> None:
        nonlocal done, shown
        done += amount
        if time.monotonic() - shown >= LINE_SECONDS:
            shown = time.monotonic()
            share = f"{100 * min(1.0, done / total):.0f}%" if total else ""
            print(f"{label}: {share} {remark}".rstrip(), file=sys.stderr, flush=True)

    yield advance

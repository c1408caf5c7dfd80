"""Progress bars on a terminal's stderr; silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Loading less than this takes no time worth a bar.
MIN_LOAD_BYTES = 256 * 2**20

Advance = Callable[[int], None]


@contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with bytes done and bytes in all while weights load."""
    bar = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if total < MIN_LOAD_BYTES or not sys.stderr.isatty():
            return
        if bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

            columns = ("loading weights", BarColumn(), DownloadColumn(), TransferSpeedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.add_task("", total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()


@contextmanager
def prompts_bar(num_prompts: int, wanted: bool) -> Iterator[Advance]:
    """Yield a function to call with the output tokens of each prompt that is done."""
    if not wanted or num_prompts < 2 or not sys.stderr.isatty():
        yield lambda num_tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
    )
    total_tokens = 0
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=num_prompts, tokens=0)

        def advance(num_tokens: int) -> None:
            nonlocal total_tokens
            total_tokens += num_tokens
            bar.update(task, advance=1, tokens=total_tokens)

        yield advance

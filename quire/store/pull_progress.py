"""Progress of a download, told to its caller; by default as a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quire.core.errors import QuireError


@dataclass(frozen=True, slots=True)
class PullProgress:
    """One step of a pull, in the terms of Ollama's ``/api/pull``.

    Attributes:
        status: Step under way: one of :data:`STEPS`, ``pulling b179c9523d0e``, or a sentence that
            says which of several files was chosen, and why.
        digest: ``sha256:`` and the hash of the file that is being fetched, where it is known.
        completed, total: Bytes of that file; 0 of 0 for a step without bytes.
    """

    status: str
    digest: str | None = None
    completed: int = 0
    total: int = 0


#: Steps without bytes that a pull has anyway.
STEPS = ("pulling manifest", "verifying sha256 digest", "writing manifest", "success")


class PullCancelled(QuireError):
    """The caller no longer wants the model; an ``OnProgress`` raises it."""


#: Gets each step, in the thread that pulls; also while nothing arrives. It ends the pull by raising
#: :class:`PullCancelled`; what has arrived is kept for the next one.
OnProgress = Callable[[PullProgress], None]


@contextmanager
def terminal_progress() -> Iterator[OnProgress]:
    """Yield a function that writes sentences to stderr and, on a terminal, shows bytes as a bar."""
    if not sys.stderr.isatty():

        def tell(step: PullProgress) -> None:
            if sentence := _sentence(step):
                print(sentence, file=sys.stderr)

        yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def show(step: PullProgress) -> None:
            if sentence := _sentence(step):
                bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
            if not step.total:
                return
            if step.status not in tasks:
                tasks[step.status] = bar.add_task(step.status, total=step.total)
            bar.update(tasks[step.status], completed=step.completed)

        yield show


def _sentence(step: PullProgress) -> str:
    """Return what people are told also where no bar is shown, empty for a mere step."""
    is_step = step.status in STEPS or step.status.startswith("pulling ")
    return "" if is_step else step.status

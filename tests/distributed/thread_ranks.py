"""Ranks as threads of a test: each does the same with a group of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from quire.core.errors import RankDeadError
from tests.distributed.thread_group import ThreadGroup, thread_groups

Result = TypeVar("Result")


def on_ranks(size: int, body: Callable[[ThreadGroup], Result]) -> list[Result]:
    """Return what ``body`` returns on each rank.

    Raises:
        Exception: The first that a rank raised by itself.
    """

    def run(group: ThreadGroup) -> Result:
        try:
            return body(group)
        except BaseException:
            group.close()
            raise

    with ThreadPoolExecutor(size) as threads:
        made = [threads.submit(run, group) for group in thread_groups(size)]
    errors = [error for future in made if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RankDeadError)):
        raise error
    return [future.result() for future in made]

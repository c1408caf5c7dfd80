"""Flags and the progress bar of the commands that load a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from quire.bench.server_options import TargetOptions
from quire.cli.flags.engine_flags import config_option
from quire.cli.flags.multi_value_flags import repeat_flags
from quire.core.errors import ConfigError
from quire.settings.flags import read_flags
from quire.system import env


def bench_flags(kind: type[TargetOptions]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of ``kind``; it receives them as ``options``."""
    settings = read_flags(kind)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**keywords: Any) -> Any:
            given = {name: keywords.pop(name) for name in settings}
            try:
                options = kind(**given)
            except ConfigError as error:
                raise click.UsageError(str(error)) from error
            if options.api_key is None:
                options = replace(options, api_key=env.get("QUIRE_API_KEY"))
            return function(options=options, **keywords)

        for flag in reversed([*settings.values()]):
            config_option(flag)(command)
        return command

    return decorate


class BenchCommand(click.Command):
    """A command without arguments: words after a repeatable flag are further values of it.

    ``--goodput ttft:500 tpot:50`` is how vLLM's command takes them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_flags(self.params, args))


class RequestsBar:
    """A progress bar that the requests of a run advance; shows nothing without a bar.

    Args:
        bar: Rich's progress bar, with a task whose fields are ``tokens`` and ``failed``.
    """

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._tokens = self._failed = 0

    def advance(self, record: Any) -> None:
        """Take a record whose request has ended."""
        self._tokens += record.num_output_tokens
        self._failed += record.error is not None
        if self._bar is not None:
            self._bar.update(0, advance=1, tokens=self._tokens, failed=self._failed)

    def describe(self, text: str) -> None:
        """Show what is under way."""
        if self._bar is not None:
            self._bar.update(0, description=text)


@contextmanager
def requests_bar(options: TargetOptions, total: int) -> Iterator[RequestsBar]:
    """Yield a bar of ``total`` requests; it draws on a terminal's stderr."""
    if options.disable_tqdm or not sys.stderr.isatty():
        yield RequestsBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tokens]:,} tokens, {task.fields[failed]} failed"),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        bar.add_task("requests", total=total, tokens=0, failed=0)
        yield RequestsBar(bar)

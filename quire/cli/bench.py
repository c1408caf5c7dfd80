"""``quire bench``: the group of measuring commands; ``serve`` loads a server that runs already."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, get_type_hints

import click

from quire.bench.options import BenchOptions
from quire.cli.engine_flags import config_option
from quire.cli.several_values import repeat_flags
from quire.core import env
from quire.core.errors import ConfigError


def bench_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the load generator's flags; it receives them as ``options``."""
    hints = get_type_hints(BenchOptions)
    settings = fields(BenchOptions)

    @functools.wraps(function)
    def command(**keywords: Any) -> Any:
        given = {field.name: keywords.pop(field.name) for field in settings}
        try:
            options = BenchOptions(**given)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
        return function(options=options, **keywords)

    for field in reversed(settings):
        config_option(field, hints[field.name], click.Option)(command)
    return command


class BenchCommand(click.Command):
    """A command without arguments: words after a repeatable flag are further values of it.

    ``--goodput ttft:500 tpot:50`` is how vLLM's command takes them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_flags(self.params, args))


@click.group()
def bench() -> None:
    """Measure a server as its clients see it."""


@bench.command(cls=BenchCommand)
@bench_flags
def serve(options: BenchOptions) -> None:
    """Send load to a running server that speaks OpenAI's API, and report latency and throughput.

    Exit code 1 when every request failed.
    """
    import uvloop

    from quire.bench.report import block, check_file, document, save
    from quire.bench.run import run_benchmark

    check_file(options)
    if options.api_key is None:
        options = replace(options, api_key=env.get("QUIRE_API_KEY"))
    with requests_bar(options) as on_done:
        run = uvloop.run(run_benchmark(options, on_done))
    metrics = run.metrics
    click.echo(block(metrics, options))
    for warning in metrics.warnings:
        click.echo(f"warning: {warning}", err=True)
    for error, count in metrics.errors.most_common(10):
        click.echo(f"failed {count} times: {error}", err=True)
    if options.save_result or options.append_result:
        path = save(document(metrics, run.records, options, run.model), options)
        click.echo(f"written: {path}", err=True)
    if not metrics.completed:
        raise click.exceptions.Exit(1)


@contextmanager
def requests_bar(options: BenchOptions) -> Iterator[Callable[[Any], None]]:
    """Yield a function to call with each record that is done; draws on a terminal's stderr."""
    if options.disable_tqdm or not sys.stderr.isatty():
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tokens]:,} tokens, {task.fields[failed]} failed"),
    )
    tokens = failed = 0
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("", total=options.num_prompts, tokens=0, failed=0)

        def advance(record: Any) -> None:
            nonlocal tokens, failed
            tokens += record.num_output_tokens
            failed += record.error is not None
            bar.update(task, advance=1, tokens=tokens, failed=failed)

        yield advance

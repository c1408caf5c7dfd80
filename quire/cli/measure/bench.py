"""``quire bench``: the group of measuring commands; ``serve`` loads a server that runs already."""

from __future__ import annotations

import click

from quire.bench.bench_options import BenchOptions
from quire.cli.measure.bench_flags import BenchCommand, bench_flags, requests_bar
from quire.cli.measure.bench_quant import quant
from quire.cli.measure.bench_spec import spec
from quire.core.plurals import counted


@click.group()
def bench() -> None:
    """Measure a server as its clients see it, or weight formats side by side."""


bench.add_command(spec)
bench.add_command(quant)


@bench.command(cls=BenchCommand)
@bench_flags(BenchOptions)
def serve(options: BenchOptions) -> None:
    """Send load to a running server that speaks OpenAI's API, and report latency and throughput.

    Exit code 1 when every request failed.
    """
    import uvloop

    from quire.bench.load_run import run_benchmark
    from quire.bench.report import block, check_file, document, load_name, names_of_result, save

    check_file(options, names_of_result(options))
    with requests_bar(options, options.num_prompts) as bar:
        run = uvloop.run(run_benchmark(options, bar.advance))
    metrics = run.metrics
    click.echo(block(metrics, options))
    for warning in metrics.warnings:
        click.echo(f"warning: {warning}", err=True)
    for error, count in metrics.errors.most_common(10):
        click.echo(f"failed {counted(count, 'time')}: {error}", err=True)
    if options.save_result or options.append_result:
        found = document(metrics, run.records, options, run.model)
        path = save(found, options, load_name(options))
        click.echo(f"written: {path}", err=True)
    if not metrics.completed:
        raise click.exceptions.Exit(1)

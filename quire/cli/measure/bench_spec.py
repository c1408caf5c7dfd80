"""``quire bench spec``: a server with speculation and without, by load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.bench.spec_options import SpecOptions
from quire.cli.measure.bench_flags import BenchCommand, bench_flags, requests_bar
from quire.core.plurals import counted

if TYPE_CHECKING:
    from rich.table import Table

    from quire.bench.spec import SpecRun

#: Characters of the longest bar.
BAR_WIDTH = 20


@click.command(cls=BenchCommand, short_help="Measure what speculation brings.")
@bench_flags(SpecOptions)
def spec(options: SpecOptions) -> None:
    """Measure a running server with speculation and without, in turn, by number of clients.

    Each round sends the same requests both ways, first one way, in the next round the other.
    Shown are output tokens a second, mean and P99 of latency and of time per output token, their
    ratio as the median of the rounds with its spread, what the server counted of proposed tokens,
    and how many answers differ. No other client should use the server meanwhile.

    Exit code 1 when nothing was proposed, or no request was answered both ways.
    """
    import uvloop

    from quire.bench.plot_file import check_plot
    from quire.bench.report import check_file, save
    from quire.bench.spec import run_spec
    from quire.bench.spec_plot import draw
    from quire.bench.spec_report import load_name, names_of_result, spec_document

    check_file(options, names_of_result(options))
    if options.plot is not None:
        check_plot(Path(options.plot))
    sizes = [options.part_size(concurrency) for concurrency in options.numbers_of_clients()]
    with requests_bar(options, 2 * options.rounds * sum(sizes)) as bar:
        run = uvloop.run(run_spec(options, bar.describe, bar.advance))
    document = spec_document(run, options)
    show(document)
    warn(document)
    if options.save_result or options.append_result:
        click.echo(f"written: {save(document, options, load_name(options))}", err=True)
    if options.plot is not None:
        draw(document, Path(options.plot))
        click.echo(f"written: {options.plot}", err=True)
    refuse_nothing(run)


def refuse_nothing(run: SpecRun) -> None:
    """End with exit code 1 where there is no comparison."""
    if not any(load.ratios() for load in run.loads):
        raise click.exceptions.Exit(1)
    if not run.proposed:
        raise click.ClickException(
            "[bench] the server must propose tokens; nothing was proposed. Start it with "
            "--speculative-config."
        )


def show(document: dict[str, Any]) -> None:
    """Print the figures."""
    from rich.console import Console

    console = Console()
    console.print(speed_table(document["loads"]))
    console.print(proposal_table(document["loads"]))
    for load in document["loads"]:
        differ, compared = load["num_different"], load["num_compared"]
        said = f"{differ} of {compared} differ" if differ else f"all {compared} are the same"
        click.echo(f"answers with and without, clients {load['max_concurrency']}: {said}")


def speed_table(loads: list[dict[str, Any]]) -> Table:
    """Return two rows for each load."""
    from rich.table import Table

    table = Table(title="milliseconds; ratio: median of the rounds (least to largest)")
    for name in ("clients", "", "tokens/s", "mean", "P99", "TPOT", "P99 TPOT"):
        table.add_column(name, justify="right")
    table.add_column("ratio")
    largest = max(load[way]["output_throughput"] for load in loads for way in ("with", "without"))
    for load in loads:
        for way in ("without", "with"):
            found = load[way]
            bar = "█" * round(BAR_WIDTH * found["output_throughput"] / (largest or 1))
            table.add_row(
                str(load["max_concurrency"]) if way == "without" else "",
                way,
                f"{found['output_throughput']:,.1f}",
                *(
                    f"{found[name]:,.2f}"
                    for name in ("mean_e2el_ms", "p99_e2el_ms", "mean_tpot_ms", "p99_tpot_ms")
                ),
                bar if way == "without" else f"{bar} {_ratio(load['ratio'])}",
                end_section=way == "with",
            )
    return table


def proposal_table(loads: list[dict[str, Any]]) -> Table:
    """Return what the server counted for each load."""
    from rich.table import Table

    table = Table(title="proposed tokens")
    for name in ("clients", "rounds", "proposed", "held", "%", "tokens a round", "a forward"):
        table.add_column(name, justify="right")
    table.add_column("% that held, by position")
    for load in loads:
        found = load["with"]
        rates = found["spec_decode_per_position_acceptance_rates"]
        table.add_row(
            str(load["max_concurrency"]),
            f"{found['spec_decode_num_drafts']:,}",
            f"{found['spec_decode_draft_tokens']:,}",
            f"{found['spec_decode_accepted_tokens']:,}",
            _shown(found["spec_decode_acceptance_rate"], 1),
            _shown(found["spec_decode_acceptance_length"], 2),
            _shown(found["tokens_per_forward"], 2),
            " ".join(f"{100 * rate:.0f}" for rate in rates),
        )
    return table


def warn(document: dict[str, Any]) -> None:
    """Say on stderr what makes the figures less than they seem, and what failed."""
    for load in document["loads"]:
        place = f"clients {load['max_concurrency']}"
        warnings = dict.fromkeys(load["without"]["warnings"] + load["with"]["warnings"])
        for warning in warnings:
            click.echo(f"warning: {place}: {warning}", err=True)
        for way in ("without", "with"):
            for error, count in load[way]["error_counts"].items():
                click.echo(f"{place}, {way}: failed {counted(count, 'time')}: {error}", err=True)


def _ratio(ratio: dict[str, Any]) -> str:
    if ratio["median"] is None:
        return "none"
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _shown(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"

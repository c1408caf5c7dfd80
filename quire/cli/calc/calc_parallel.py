"""``quire calc parallel``: how to divide a model over devices, and what that costs."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from quire.cli.calc.calc_flags import COUNT, DTYPE, JSON
from quire.cli.calc.calc_models import kv_spec, split_shape, weight_bytes
from quire.core.errors import ConfigError
from quire.planner.device_map import Room
from quire.planner.device_memory import DEFAULT_FRACTION
from quire.planner.memory_budget import budget_from_total
from quire.planner.parallel_costs import LINKS, WEIGHT_BYTES, weights_as
from quire.planner.parallel_plan import Fleet, ParallelPlan, PlannedLoad, place_load, plan_layout
from quire.planner.parallel_report import choice_lines, report_facts, report_lines
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import read_max_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelQuery:
    """Values of the flags; a width of None is to be chosen."""

    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    memory: int | None
    max_memory: str | None
    devices: int
    nodes: int
    link: str
    exact: bool
    wire_bytes: int

    def fleet(self) -> Fleet:
        """Return the devices.

        Raises:
            click.UsageError: The memory of each device is not given.
        """
        if self.memory is None:
            raise click.UsageError(
                "without -tp and -pp a division is chosen by memory; give --memory of each device."
            )
        return Fleet(
            num_nodes=self.nodes,
            node_devices=self.devices,
            device_bytes=budget_from_total(self.memory, DEFAULT_FRACTION),
            link=LINKS[self.link],
        )


@click.command(short_help="Show how to divide a model, and what it costs.")
@click.argument("model")
@click.option("--tensor-parallel-size", "-tp", type=COUNT, help="Shards; default: chosen.")
@click.option("--pipeline-parallel-size", "-pp", type=COUNT, help="Stages; default: chosen.")
@click.option("--memory", type=COUNT, help="Memory of each device (80GB); 0.9 of it is used.")
@click.option("--max-memory", metavar="DEVICE=BYTES,...",
    help="Place layers on unequal devices, in this order: gpu=24GB,cpu=64GB.")  # fmt: skip
@click.option("--devices", type=COUNT, default=8, show_default=True, help="Devices of each node.")
@click.option("--nodes", type=COUNT, default=1, show_default=True, help="Machines.")
@click.option("--link", type=click.Choice(list(LINKS)), default="nvlink", show_default=True,
    help="Link between devices of a node.")  # fmt: skip
@click.option("--tokens", type=COUNT, default=4096, show_default=True,
    help="Tokens of all sequences together.")  # fmt: skip
@click.option("--max-rows", type=COUNT, default=2048, show_default=True,
    help="Tokens of the largest step.")  # fmt: skip
@click.option("--weight-dtype", type=click.Choice(list(WEIGHT_BYTES)), default="bfloat16",
    show_default=True, help="Element type of the weights.")  # fmt: skip
@click.option("--wire-bytes", type=click.IntRange(1, 4), default=4, show_default=True,
    help="Bytes of an element that is sent.")  # fmt: skip
@click.option("--exact/--no-exact", default=True, show_default=True,
    help="Form each sum on one rank, or over ranks.")  # fmt: skip
@DTYPE
@JSON
def parallel(
    model: str, tokens: int, max_rows: int, weight_dtype: str, dtype: str, as_json: bool,
    **asked_flags: object,
) -> None:  # fmt: skip
    """Show how to divide MODEL over devices, and what ranks then hold and exchange.

    With -tp or -pp that division is shown; without, the one of the fewest devices that hold it.
    """
    asked = ParallelQuery(**asked_flags)  # type: ignore[arg-type]  # click has checked them
    shape = split_shape(model)
    load = PlannedLoad(
        shape=shape,
        spec=kv_spec(model, dtype),
        weight_bytes=weights_as(weight_dtype, weight_bytes(model, "bfloat16")),
        kv_tokens=tokens,
        max_rows=max_rows,
    )
    plan: ParallelPlan | None = None
    placed: str | None = None
    widths = asked.tensor_parallel_size or asked.pipeline_parallel_size
    if asked.max_memory is not None:
        if widths or asked.memory:
            raise click.UsageError(
                "--max-memory chooses the stages by itself: leave out -tp, -pp and --memory."
            )
        try:
            sizes = read_max_memory(asked.max_memory)
            layout, placed = place_load(load, [Room(*pair) for pair in sizes.items()])
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
    elif widths:
        layout = ParallelLayout(asked.tensor_parallel_size or 1, asked.pipeline_parallel_size or 1)
        _check(layout, shape.num_layers)
    else:
        plan = plan_layout(load, asked.fleet())
        if not plan.candidates:
            raise click.UsageError(plan.reasons[0])
        layout = plan.candidates[0].layout
    show = _write_json if as_json else _write_lines
    show(load, layout, asked, plan, placed)


def _check(layout: ParallelLayout, num_layers: int) -> None:
    if layout.pipeline > num_layers:
        raise click.UsageError(
            f"--pipeline-parallel-size must be at most {num_layers}, the model's layers; got "
            f"{layout.pipeline}."
        )


def _write_lines(
    load: PlannedLoad, layout: ParallelLayout, asked: ParallelQuery, plan: ParallelPlan | None,
    placed: str | None,
) -> None:  # fmt: skip
    if placed is not None:
        click.echo(placed)
    chosen = () if plan is None else choice_lines(plan)
    link, exact, wire = LINKS[asked.link], asked.exact, asked.wire_bytes
    for line in (*chosen, *report_lines(load, layout, link, exact=exact, wire_bytes=wire)):
        click.echo(line)


def _write_json(
    load: PlannedLoad, layout: ParallelLayout, asked: ParallelQuery, plan: ParallelPlan | None,
    placed: str | None,
) -> None:  # fmt: skip
    link, exact, wire = LINKS[asked.link], asked.exact, asked.wire_bytes
    choices = () if plan is None else plan.candidates
    click.echo(json.dumps({
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "device_map": placed,
        "choices": [[one.layout.tensor, one.layout.pipeline, one.num_nodes] for one in choices],
        "reasons": [] if plan is None else list(plan.reasons),
        **report_facts(load, layout, link, exact=exact, wire_bytes=wire),
    }))  # fmt: skip

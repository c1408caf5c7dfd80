"""``quire calc parallel``: how to divide a model over devices, and what that costs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click

from quire.cli.calc.calc_flags import COUNT, DTYPE, JSON
from quire.cli.calc.calc_models import kv_spec, split_shape, weight_bytes
from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.planner.device_map import Room
from quire.planner.parallel_costs import (
    LINKS,
    collectives,
    forward_bytes,
    rank_memory,
    seconds,
    slow_link,
)
from quire.planner.parallel_plan import Fleet, ParallelPlan, PlannedLoad, place_load, plan_layout
from quire.planner.parallel_report import report_lines
from quire.settings.parallel_layout import ParallelLayout
from quire.settings.parallel_options import read_max_memory

#: Of weights: what the engine holds them in, and a byte each.
WEIGHT_BYTES = {**DTYPE_BYTES, "fp8": 1, "int8": 1}
DEFAULT_FRACTION = 0.9


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
        usable = int(DEFAULT_FRACTION * self.memory)
        return Fleet(
            num_nodes=self.nodes,
            node_devices=self.devices,
            device_bytes=usable,
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
    in_halves = weight_bytes(model, "bfloat16")
    load = PlannedLoad(
        shape=shape,
        spec=kv_spec(model, dtype),
        weight_bytes=in_halves * WEIGHT_BYTES[weight_dtype] // 2,
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
    if plan is not None:
        names = [f"TP={one.layout.tensor} x PP={one.layout.pipeline}" for one in plan.candidates]
        others = f" (as many devices: {', '.join(names[1:])})" if names[1:] else ""
        click.echo(f"choice: {names[0]}{others}")
        for reason in plan.reasons:
            click.echo(f"- {reason}")
    for line in report_lines(
        load, layout, LINKS[asked.link], exact=asked.exact, wire_bytes=asked.wire_bytes
    ):
        click.echo(line)


def _write_json(
    load: PlannedLoad, layout: ParallelLayout, asked: ParallelQuery, plan: ParallelPlan | None,
    placed: str | None,
) -> None:  # fmt: skip
    shape, wire = load.shape, asked.wire_bytes
    found = collectives(shape, layout, exact=asked.exact, wire_bytes=wire)
    ranks = rank_memory(shape, load.spec, layout, load.weight_bytes, load.max_rows, wire_bytes=wire)
    choices = () if plan is None else plan.candidates
    click.echo(json.dumps({
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "device_map": placed,
        "choices": [[one.layout.tensor, one.layout.pipeline, one.num_nodes] for one in choices],
        "reasons": [] if plan is None else list(plan.reasons),
        "ranks": [asdict(one) for one in ranks],
        "collectives": [asdict(one) for one in found],
        "token_bytes": forward_bytes(found, 1, 1),
        "seconds": {name: seconds(found, layout, link, 1, 1) for name, link in LINKS.items()},
        "warning": slow_link(layout, LINKS[asked.link]),
    }))  # fmt: skip

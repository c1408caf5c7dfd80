"""``quire calc fit``: what frees memory where a model does not fit, and what it does besides."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from quire.cli.calc.calc_flags import COUNT, DTYPE, JSON
from quire.cli.calc.calc_models import kv_spec, weight_bytes
from quire.cli.flags.engine_flags import CountType
from quire.cli.table import print_table
from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.planner.low_memory import Use, rank_strategies


@click.command(short_help="Show what frees memory, by how much, and what it costs.")
@click.argument("model")
@click.option("--memory", type=COUNT, required=True, help="Memory of each device (24GB).")
@click.option("--context", type=COUNT, default=4096, show_default=True,
    help="Tokens of each sequence.")  # fmt: skip
@click.option("--sequences", type=COUNT, default=1, show_default=True, help="Sequences at once.")
@click.option("--shared-prefix", type=CountType(False, minimum=0), default=0, show_default=True,
    help="First tokens that all sequences have in common.")  # fmt: skip
@click.option("--weight-dtype", type=click.Choice(list(DTYPE_BYTES)), default="bfloat16",
    show_default=True, help="Element type of the weights.")  # fmt: skip
@click.option("scratch_bytes", "--scratch", type=CountType(False, minimum=0), default=0,
    help="Bytes of activations and buffers on each device (2GB).")  # fmt: skip
@click.option("width", "--tensor-parallel-size", "-tp", type=COUNT, default=1, show_default=True,
    help="Devices that share the model.")  # fmt: skip
@DTYPE
@JSON
def fit(
    model: str, memory: int, weight_dtype: str, dtype: str, as_json: bool, **sizes: Any
) -> None:
    """Show what frees memory for MODEL, the most first, by how much and what it does besides.

    Each is counted by itself, on one device.
    """
    use = Use(
        weight_bytes=weight_bytes(model, weight_dtype),
        weight_bits=8 * DTYPE_BYTES[weight_dtype],
        spec=kv_spec(model, dtype),
        **sizes,
    )
    ranked = rank_strategies(use)
    if as_json:
        rows = [asdict(one) | {"fits": one.needed_bytes <= memory} for one in ranked]
        facts = {"needed_bytes": use.device_bytes, "memory_bytes": memory, "strategies": rows}
        click.echo(json.dumps(facts))
        return
    needed = use.device_bytes
    verdict = "it fits" if needed <= memory else f"{(needed - memory) / 1e9:.2f} GB too much"
    click.echo(f"needed on each device: {needed / 1e9:.2f} of {memory / 1e9:.2f} GB: {verdict}")
    print_table([
        ("strategy", "setting", "frees, GB", "then fits"),
        *(
            (
                one.name,
                one.flag,
                f"{one.freed_bytes / 1e9:.2f}",
                "yes" if one.needed_bytes <= memory else "no",
            )
            for one in ranked
        ),
    ])  # fmt: skip
    for one in ranked:
        click.echo(f"- {one.name}: {one.side_effect}")

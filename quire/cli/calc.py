"""``quire calc``: the engine's own formulas as a calculator; it loads no weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from quire.cli.engine_flags import CountType
from quire.core.kv_cache_spec import KV_DTYPE_BYTES, SCALE_BYTES, KVCacheSpec
from quire.core.memory_budget import budget_from_total, num_sequences
from quire.core.named_shapes import NAMED_SHAPES, named_spec

#: What else an engine's --kv-cache-dtype calls them.
ALIASES = {"fp8": "fp8_e4m3"}
DTYPE = click.option(
    "--dtype", type=click.Choice([*KV_DTYPE_BYTES, *ALIASES]), default="bfloat16",
    show_default=True, callback=lambda ctx, param, name: ALIASES.get(name, name),
    help="Of K and V.",
)  # fmt: skip
COUNT = CountType(False, minimum=1)
TOKENS = click.option("--tokens", type=COUNT, default=4096, show_default=True, help="Per sequence.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse nan, which no range of click's does."""
    if math.isnan(value):
        raise click.BadParameter("nan is no number.")
    return value


@click.group()
def calc() -> None:
    """Compute KV cache sizes and how many sequences fit.

    MODEL is a name such as llama-3.1-8b, quire-tiny, a folder with config.json, or a GGUF file.
    """


@calc.command(short_help="Show the KV cache's size.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@TOKENS
@click.option("--sequences", type=COUNT, default=1, show_default=True, help="Of that length each.")
@DTYPE
@JSON
def kv(models: tuple[str, ...], tokens: int, sequences: int, dtype: str, as_json: bool) -> None:
    """Show the KV cache's size; without MODEL, for every named model."""
    rows: list[dict[str, Any]] = []
    for model in models or tuple(NAMED_SHAPES):
        spec = _spec(model, dtype)
        token_bytes = spec.token_bytes + spec.token_scale_bytes
        total = token_bytes * tokens * sequences
        rows.append({"model": model, "bytes_per_token": token_bytes, "bytes": total})
    if as_json:
        click.echo(json.dumps(rows))
        return
    head = f"(head dim + {SCALE_BYTES} of scale)" if dtype == "int8" else "head dim x bytes"
    click.echo(f"{sequences} x {tokens} tokens in {dtype}: 2 x layers x KV heads x {head}")
    _table([
        ("model", "bytes/token", "bytes", "GB", "GiB"),
        *(
            (
                row["model"], f"{row['bytes_per_token']:,}", f"{row['bytes']:,}",
                f"{row['bytes'] / 1e9:.3f}", f"{row['bytes'] / 2**30:.3f}",
            )
            for row in rows
        ),
    ])  # fmt: skip


@calc.command(short_help="Show how many sequences fit next to the weights.")
@click.argument("model")
@click.option("--memory", type=COUNT, required=True, help="Of the device (80GiB).")
@click.option("--weights", type=COUNT, required=True, help="Of the weights (16GiB).")
@click.option(
    "--fraction", type=click.FloatRange(0, 1), default=0.9, show_default=True, callback=_number,
    help="Of the memory that is used.",
)  # fmt: skip
@TOKENS
@DTYPE
@JSON
def concurrency(
    model: str, memory: int, weights: int, fraction: float, tokens: int, dtype: str, as_json: bool
) -> None:
    """Show how many sequences of --tokens tokens fit next to the weights."""
    spec = _spec(model, dtype)
    kv_bytes = max(0, budget_from_total(memory, fraction) - weights)
    count = num_sequences(kv_bytes, spec, tokens)
    if as_json:
        click.echo(json.dumps({"kv_bytes": kv_bytes, "sequences": count}))
    else:
        click.echo(f"{kv_bytes / 1e9:.2f} GB for KV: {count:,} sequences of {tokens:,} tokens")


def _spec(model: str, dtype: str) -> KVCacheSpec:
    spec = named_spec(model, dtype)
    if spec is not None:
        return spec
    from quire.models.config_reader import read_model_config
    from quire.models.hub import EMBEDDED, resolve_model

    path = Path(model)
    if not path.exists() and model != EMBEDDED:
        raise click.UsageError(
            f"MODEL must be a folder, a GGUF file, {EMBEDDED} or one of "
            f"{', '.join(NAMED_SHAPES)}; got {model}."
        )
    # Who names the file that is read means its folder.
    config = read_model_config(path.parent if path.name == "config.json" else resolve_model(model))
    return KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, 16, dtype)


def _table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns as wide as what is in them, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *numbers in rows:
        cells = (text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
        click.echo("  ".join((first.ljust(widths[0]), *cells)))

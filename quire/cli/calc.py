"""``quire calc``: the engine's own formulas as a calculator; it loads no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from quire.cli.engine_flags import CountType
from quire.core.kv_cache_spec import KV_DTYPE_BYTES, SCALE_BYTES, KVCacheSpec
from quire.core.memory_budget import budget_from_total, num_sequences
from quire.core.named_shapes import NAMED_SHAPES, named_spec

DTYPE = click.option(
    "--dtype", type=click.Choice(list(KV_DTYPE_BYTES)), default="bfloat16", help="Of K and V."
)
TOKENS = click.option(
    "--tokens", type=CountType(False), default=4096, show_default=True, help="Per sequence."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def calc() -> None:
    """Compute KV cache sizes and how many sequences fit.

    MODEL is a name such as llama-3.1-8b or a folder with config.json or a GGUF file.
    """


@calc.command(short_help="Show the KV cache's size.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@TOKENS
@click.option(
    "--sequences", type=CountType(False), default=1, show_default=True, help="Of that length each."
)
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
    click.echo(f"{'model':<16}{'bytes/token':>12}{'bytes':>18}{'GB':>10}{'GiB':>10}")
    for row in rows:
        total = row["bytes"]
        click.echo(
            f"{row['model']:<16}{row['bytes_per_token']:>12,}{total:>18,}"
            f"{total / 1e9:>10.3f}{total / 2**30:>10.3f}"
        )


@calc.command(short_help="Show how many sequences fit beside the weights.")
@click.argument("model")
@click.option("--memory", type=CountType(False), required=True, help="Of the device (80GiB).")
@click.option("--weights", type=CountType(False), required=True, help="Of the weights (16GiB).")
@click.option("--fraction", type=click.FloatRange(0, 1), default=0.9, show_default=True)
@TOKENS
@DTYPE
@JSON
def concurrency(
    model: str, memory: int, weights: int, fraction: float, tokens: int, dtype: str, as_json: bool
) -> None:
    """Show how many sequences of --tokens tokens fit beside the weights."""
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
    if not Path(model).exists():
        raise click.UsageError(
            f"MODEL must be a folder, a GGUF file or one of {', '.join(NAMED_SHAPES)}; got {model}."
        )
    from quire.models.config_reader import read_model_config

    config = read_model_config(Path(model))
    return KVCacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, 16, dtype)

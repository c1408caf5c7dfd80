"""``quire calc``: the engine's own formulas as a calculator; it loads no weights."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from quire.cli.calc import calc_fit, calc_parallel, calc_quant, calc_spec
from quire.cli.calc.calc_flags import COUNT, DTYPE, JSON, finite
from quire.cli.calc.calc_models import kv_spec, weight_bytes
from quire.cli.flags.engine_flags import CountType
from quire.cli.table import print_table
from quire.core.model.kv_cache_spec import DTYPE_BYTES, INT4_GROUP, SCALE_BYTES, KVCacheSpec
from quire.core.plurals import counted
from quire.planner.device_memory import DEFAULT_FRACTION, DeviceMemory, sequences_bytes
from quire.planner.memory_budget import num_sequences, shares
from quire.planner.named_shapes import NAMED_SHAPES

#: What a token's head takes in formats with scales.
HEAD_BYTES = {
    "int8": f"(head dim + {SCALE_BYTES} of scale)",
    "int4": f"head dim x (1/2 + {2 * SCALE_BYTES}/{INT4_GROUP} of scale and minimum)",
}
TOKENS = click.option("--tokens", type=COUNT, default=4096, show_default=True,
    help="Tokens of each sequence.")  # fmt: skip


@click.group()
def calc() -> None:
    """Compute where memory goes, what speculation brings, how to round and to divide a model.

    MODEL is a name such as llama-3.1-8b or qwen3:0.6b, a folder with config.json, or a GGUF file.
    """


calc.add_command(calc_spec.spec)
calc.add_command(calc_quant.advise_quant)
calc.add_command(calc_fit.fit)
calc.add_command(calc_parallel.parallel)


@calc.command(short_help="Show the KV cache's size.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@TOKENS
@click.option("--sequences", type=COUNT, default=1, show_default=True,
    help="Sequences of --tokens each.")  # fmt: skip
@DTYPE
@JSON
def kv(models: tuple[str, ...], tokens: int, sequences: int, dtype: str, as_json: bool) -> None:
    """Show the KV cache's size; without MODEL, for every named model."""
    rows: list[dict[str, Any]] = []
    for model in models or tuple(NAMED_SHAPES):
        spec = kv_spec(model, dtype)
        total = sequences_bytes(spec, tokens, sequences)
        rows.append({"model": model, "bytes_per_token": spec.token_bytes, "bytes": total})
    if as_json:
        click.echo(json.dumps(rows))
        return
    head = HEAD_BYTES.get(dtype, "head dim x bytes")
    click.echo(
        f"{sequences} x {counted(tokens, 'token')} in {dtype}: 2 x layers x KV heads x {head}"
    )
    print_table([
        ("model", "bytes/token", "bytes", "GB", "GiB"),
        *(
            (
                row["model"], f"{row['bytes_per_token']:,}", f"{row['bytes']:,}",
                f"{row['bytes'] / 1e9:.3f}", f"{row['bytes'] / 2**30:.3f}",
            )
            for row in rows
        ),
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as its flags describe it.

    Attributes:
        memory: Bytes of the device.
        weights: Bytes of the model's weights on all devices together; None: counted.
        weight_dtype: Element type that the weights are counted in; None: the checkpoint's.
        scratch, fraction, free_fraction: The same as in :class:`DeviceMemory`.
        tensor_parallel_size: Equal devices that share the weights and the KV heads.
    """

    memory: int
    weights: int | None
    weight_dtype: str | None
    scratch: int
    fraction: float | None
    free_fraction: float | None
    tensor_parallel_size: int

    def __post_init__(self) -> None:
        """Refuse a flag that another flag would override.

        Raises:
            click.UsageError: Two such flags are given; it names both.
        """
        if self.fraction is not None and self.free_fraction is not None:
            raise click.UsageError("give one of --fraction and --free-fraction; got both.")
        if self.weights is not None and self.weight_dtype is not None:
            raise click.UsageError("--weights are bytes already; got --weight-dtype as well.")

    @property
    def plan(self) -> DeviceMemory:
        """The device as the planner takes it."""
        return DeviceMemory(
            total=self.memory,
            scratch=self.scratch,
            fraction=self.fraction,
            free_fraction=self.free_fraction,
            num_devices=self.tensor_parallel_size,
        )

    def divide(self, model: str) -> dict[str, int]:
        """Return the bytes of each use on one device."""
        weights = self.weights
        return self.plan.divide(
            weight_bytes(model, self.weight_dtype) if weights is None else weights
        )

    def spec(self, model: str, dtype: str) -> KVCacheSpec:
        """Return one device's part of a model's KV cache.

        Raises:
            click.UsageError: The heads cannot be shared out.
        """
        whole = kv_spec(model, dtype)
        part = self.plan.part_of(whole)
        if part is None:
            raise click.UsageError(
                f"--tensor-parallel-size must divide {whole.num_kv_heads} KV heads; got "
                f"{self.tensor_parallel_size}."
            )
        return part


def device_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags of a device; it receives them as ``device``."""

    @functools.wraps(function)
    def command(**keywords: Any) -> Any:
        given = {field.name: keywords.pop(field.name) for field in fields(Device)}
        return function(device=Device(**given), **keywords)

    flags = (
        click.option("--memory", type=COUNT, required=True, help="Memory of the device (80GiB)."),
        click.option("--weights", type=COUNT,
            help="Bytes of the weights (16GiB); default: counted."),
        click.option("--weight-dtype", type=click.Choice(list(DTYPE_BYTES)),
            help="Element type of the weights; default: the checkpoint's, bfloat16 for a name."),
        click.option("--scratch", type=CountType(False, minimum=0), default=0,
            help="Bytes of activations and buffers (2GB)."),
        click.option("--fraction", type=click.FloatRange(0, 1), callback=finite,
            show_default=str(DEFAULT_FRACTION),
            help="Part of the memory for weights, scratch and KV."),
        click.option("--free-fraction", type=click.FloatRange(0, 1), callback=finite,
            help="Part of what weights and scratch leave, for KV alone."),
        click.option("--tensor-parallel-size", "-tp", type=COUNT, default=1, show_default=True,
            help="Devices that share the model."),
    )  # fmt: skip
    for flag in reversed(flags):
        flag(command)
    return command


@calc.command(short_help="Show how many sequences fit next to the weights.")
@click.argument("model")
@device_flags
@TOKENS
@DTYPE
@JSON
def concurrency(model: str, device: Device, tokens: int, dtype: str, as_json: bool) -> None:
    """Show how many sequences of --tokens tokens fit next to the weights."""
    spec = device.spec(model, dtype)
    kv_bytes = device.divide(model)["KV"]
    count = num_sequences(kv_bytes, spec, tokens)
    if as_json:
        click.echo(json.dumps({"kv_bytes": kv_bytes, "sequences": count}))
    else:
        click.echo(
            f"{kv_bytes / 1e9:.2f} GB for KV: {counted(count, 'sequence')} of "
            f"{counted(tokens, 'token')}"
        )


@calc.command(short_help="Show where a device's memory goes.")
@click.argument("model")
@device_flags
@DTYPE
@JSON
def memory(model: str, device: Device, dtype: str, as_json: bool) -> None:
    """Show where the memory of one device goes: weights, KV cache, scratch and headroom."""
    spec = device.spec(model, dtype)
    uses = device.divide(model)
    if uses["headroom"] < 0:
        raise click.UsageError(
            f"weights ({uses['weights'] / 1e9:.1f} GB) and scratch must fit in --memory; got "
            f"{device.memory / 1e9:.1f} GB. Raise it, or --tensor-parallel-size."
        )
    blocks = uses["KV"] // spec.block_bytes
    if as_json:
        parts = {
            name: {"bytes": size, "percent": share} for name, (size, share) in shares(uses).items()
        }
        click.echo(json.dumps(parts | {"blocks": blocks}))
        return
    print_table([
        ("use", "bytes", "GB", "GiB", "%"),
        *(
            (name, f"{size:,}", f"{size / 1e9:.1f}", f"{size / 2**30:.1f}", f"{share:.1f}")
            for name, (size, share) in shares(uses).items()
        ),
    ])  # fmt: skip
    tokens = blocks * spec.block_size
    click.echo(
        f"KV cache: {counted(blocks, 'block')} of {counted(spec.block_size, 'token')}, "
        f"{tokens:,} in all"
    )

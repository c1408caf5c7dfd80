"""Flags and checks that the commands of ``quire calc`` share."""

from __future__ import annotations

import math
from typing import TypeVar

import click

from quire.cli.flags.engine_flags import CountType
from quire.core.model.kv_cache_spec import KV_DTYPE_BITS

COUNT = CountType(False, minimum=1)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: Further names of element types that an engine's --kv-cache-dtype takes.
ALIASES = {"fp8": "fp8_e4m3"}
DTYPE = click.option(
    "--dtype", type=click.Choice([*KV_DTYPE_BITS, *ALIASES]), default="bfloat16",
    show_default=True, callback=lambda ctx, param, name: ALIASES.get(name, name),
    help="Element type of K and V.",
)  # fmt: skip
T = TypeVar("T", float | None, tuple[float, ...])


def finite(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """Refuse nan and infinity, which no range of click's does."""
    given = value if isinstance(value, tuple) else (value,)
    for number in given:
        if number is not None and not math.isfinite(number):
            raise click.BadParameter(f"{number} is not a finite number.")
    return value

"""Flags and checks that the commands of ``quire calc`` share."""

from __future__ import annotations

import math
from typing import TypeVar

import click

from quire.cli.engine_flags import CountType

COUNT = CountType(False, minimum=1)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
T = TypeVar("T", float | None, tuple[float, ...])


def finite(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """Refuse nan and infinity, which no range of click's does."""
    given = value if isinstance(value, tuple) else (value,)
    for number in given:
        if number is not None and not math.isfinite(number):
            raise click.BadParameter(f"{number} is not a finite number.")
    return value

"""Names of what weights may be rounded to at load."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

QuantizationName: TypeAlias = Literal["int8", "int6", "int5", "int4", "nf4", "int3", "int2"]
QUANTIZATIONS: tuple[str, ...] = get_args(QuantizationName)

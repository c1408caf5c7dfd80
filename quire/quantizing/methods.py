"""The methods of quantization: each one's settings, and the formats that can hold its matrices.

What a method does is in :mod:`quire.quantizing.produce`; plain data here, so that a command line
can name them without loading arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Of codes of any method.
BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method's settings and demands, known before it runs.

    Attributes:
        about: A few words for the command line.
        settings: Fields of :class:`~quire.quantizing.scheme.QuantizationScheme` that may be given,
            and their defaults.
        fixed: Fields that the method itself decides.
        formats: Names of stored formats that can hold its matrices; the first is the default.
        asks_inputs: Whether the method looks at calibration text, whatever its settings.
        scales_columns: Whether the method scales a layer's matrices before they are rounded.
        without_inputs: The method of a matrix that saw too few inputs.
        bits: Bits of a code that may be asked for.
    """

    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...]
    asks_inputs: bool = False
    scales_columns: bool = False
    without_inputs: str = ""
    bits: tuple[int, ...] = BITS


INTEGERS = {"bits": 4, "group_size": 128, "symmetric": True}
TABLES = {"bits": 4, "sparse": 0.0}
INTEGER_FORMATS = ("gptq", "compressed-tensors", "awq")

METHODS: dict[str, Method] = {
    "rtn": Method(about="rounds", settings=INTEGERS, formats=INTEGER_FORMATS),
    "gptq": Method(
        about="lets columns make up for the errors of others",
        settings={
            **INTEGERS,
            "act_order": False,
            "group_aware": False,
            "true_sequential": False,
            "damping": 0.01,
        },
        formats=INTEGER_FORMATS,
        asks_inputs=True,
        without_inputs="rtn",
    ),
    "awq": Method(
        about="scales columns with large inputs",
        settings={**INTEGERS, "duo_scaling": False, "clip": True},
        formats=("awq", "gptq", "compressed-tensors"),
        asks_inputs=True,
        scales_columns=True,
        without_inputs="rtn",
    ),
    "fp8": Method(
        about="rounds to floats of 8 bits",
        settings={"scales": "channel", "static_inputs": False},
        fixed={"bits": 8, "group_size": -1},
        formats=("compressed-tensors", "fp8"),
    ),
    "int8": Method(
        about="rounds to bytes",
        fixed={"bits": 8, "group_size": -1},
        formats=("compressed-tensors",),
    ),
    "smoothquant": Method(
        about="too, after outliers of inputs went over to weights",
        settings={"smoothing": 0.5},
        fixed={"bits": 8, "group_size": -1},
        formats=("compressed-tensors",),
        asks_inputs=True,
        scales_columns=True,
        without_inputs="int8",
    ),
    "llm-int8": Method(
        about="is int8 as bitsandbytes stores it",
        fixed={"bits": 8, "group_size": -1},
        formats=("bitsandbytes",),
    ),
    "nvfp4": Method(
        about="rounds to floats of 4 bits in groups of 16",
        fixed={"bits": 4, "group_size": 16},
        formats=("compressed-tensors",),
    ),
    "mxfp4": Method(
        about="in groups of 32",
        fixed={"bits": 4, "group_size": 32},
        formats=("compressed-tensors",),
    ),
    "nf4": Method(
        about="rounds to quantiles of the normal distribution",
        settings={"double_quant": True},
        fixed={"bits": 4, "group_size": 64},
        formats=("bitsandbytes",),
    ),
    "fp4": Method(
        about="to floats of 4 bits as bitsandbytes has them",
        settings={"double_quant": True},
        fixed={"bits": 4, "group_size": 64},
        formats=("bitsandbytes",),
    ),
    "hqq": Method(
        about="fits zeros to what most weights leave over",
        settings={"bits": 4, "group_size": 64},
        formats=("hqq",),
    ),
    "squeezellm": Method(
        about="clusters each row's weights by how much their inputs count",
        settings=TABLES,
        fixed={"group_size": -1},
        formats=("squeezellm",),
        bits=(3, 4),
        asks_inputs=True,
        without_inputs="kmeans",
    ),
    "kmeans": Method(
        about="all alike",
        settings=TABLES,
        fixed={"group_size": -1},
        formats=("squeezellm",),
        bits=(3, 4),
    ),
    "quip": Method(
        about="(QuIP#) rotates matrices and rounds eight columns at a time to a lattice",
        settings={"bits": 2, "damping": 0.01},
        fixed={"group_size": -1},
        formats=("quip",),
        asks_inputs=True,
        bits=(2, 4),
    ),
}


def methods_with(setting: str) -> list[str]:
    """Return the names of the methods that take a setting."""
    return [name for name, method in METHODS.items() if setting in method.settings]

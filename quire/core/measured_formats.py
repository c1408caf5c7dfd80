"""What this engine measured of weight formats on a CPU, for advice where nothing was measured yet.

Copied from ``benchmarks/results/quant_llama-1b-4-layers_zen5.json`` (memory and speed) and
``quant_quire-tiny_zen5.json`` (quality), rounded; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredFormat:
    """A format of ``--quantization``, next to bfloat16.

    Attributes:
        name: Of the format.
        bits: A weight takes in memory.
        decode: Tokens a second by number of sequences.
        perplexity: On held-out text.
    """

    name: str
    bits: float
    decode: dict[int, float]
    perplexity: float


PROCESSOR = "2 cores of an AMD Zen 5"
SPEED_MODEL = "four layers of Llama 3.2 1B's shape"
QUALITY_MODEL = "quire-tiny"
MEASURED_FORMATS = (
    MeasuredFormat("bf16", 16, {1: 1.0, 8: 1.0, 32: 1.0}, 1.0),
    MeasuredFormat("int8", 8.5, {1: 1.76, 8: 1.77, 32: 1.57}, 1.0001),
    MeasuredFormat("int6", 6.5, {1: 1.72, 8: 1.82, 32: 1.34}, 1.0008),
    MeasuredFormat("int5", 5.5, {1: 2.72, 8: 2.23, 32: 1.54}, 1.0007),
    MeasuredFormat("int4", 4.5, {1: 3.41, 8: 2.35, 32: 1.48}, 1.002),
    MeasuredFormat("nf4", 4.25, {1: 2.72, 8: 2.23, 32: 1.55}, 1.0055),
    MeasuredFormat("int3", 4, {1: 2.34, 8: 1.95, 32: 1.3}, 1.0168),
    MeasuredFormat("int2", 3, {1: 3.21, 8: 1.81, 32: 1.38}, 1.4381),
)
#: Perplexity of 4 bits in groups of 32 by ``quire quantize``, next to floats.
MEASURED_METHODS = {"AWQ": 1.0008, "GPTQ": 1.0016, "plain rounding": 1.006}

"""Measurements of weight formats on a CPU by this engine, for advice where none were taken yet.

Copied from ``benchmarks/results/quant_llama-1b-4-layers_zen5.json`` (memory and speed) and
``quant_quire-tiny_zen5.json`` (quality), rounded; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredFormat:
    """A format of ``--quantization``, next to bfloat16.

    Attributes:
        name: Name of the format.
        bits: Bits that a weight takes in memory.
        decode: Tokens a second by number of sequences, relative to bfloat16.
        perplexity: Perplexity on held-out text, relative to bfloat16.
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
    MeasuredFormat("int8", 8.5, {1: 1.92, 8: 1.7, 32: 1.59}, 1.0001),
    MeasuredFormat("int6", 6.5, {1: 2.33, 8: 2.02, 32: 1.48}, 1.0008),
    MeasuredFormat("int5", 5.5, {1: 2.99, 8: 2.47, 32: 1.53}, 1.0007),
    MeasuredFormat("int4", 4.5, {1: 3.58, 8: 2.79, 32: 1.66}, 1.002),
    MeasuredFormat("nf4", 4.25, {1: 3.72, 8: 2.78, 32: 1.73}, 1.0055),
    MeasuredFormat("int3", 4, {1: 3.78, 8: 2.23, 32: 1.41}, 1.0168),
    MeasuredFormat("int2", 3, {1: 4.88, 8: 2.43, 32: 1.52}, 1.4381),
)
#: Perplexity of 4 bits in groups of 32 by ``quire quantize``, next to floats.
MEASURED_METHODS = {"AWQ": 1.0008, "GPTQ": 1.0012, "plain rounding": 1.006}

"""Graphics cards by name: memory, bandwidth and peak rates, as their makers state them.

Rates are dense: data sheets often print twice as much, for matrices of which half is zero. Units
are decimal (GB, TB/s, TFLOP/s), as in the data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """A card's memory and highest rates.

    Attributes:
        title: The card's usual name.
        memory: Bytes of memory.
        read: Bytes a second from memory.
        peaks: Operations a second by type of number: ``bf16``, ``fp8``, ``int8``; a type that the
            card does not multiply is absent. Of tensor cores, sums in float32 (int8: int32).
        source: The document that states these numbers.
    """

    title: str
    memory: float
    read: float
    peaks: dict[str, float]
    source: str


def _card(title: str, gb: float, tb_s: float, source: str, **tera_ops: float) -> Card:
    peaks = {name: rate * 1e12 for name, rate in tera_ops.items()}
    return Card(title, gb * 1e9, tb_s * 1e12, peaks, source)


_HOPPER = {"bf16": 989, "fp8": 1979, "int8": 1979}
_ADA = {"bf16": 165.2, "fp8": 330.3, "int8": 660.6}
_AMPERE = {"bf16": 312, "int8": 624}
NAMED_CARDS: dict[str, Card] = {
    "b200": _card("B200", 180, 8.0, "NVIDIA DGX B200 data sheet", bf16=2250, fp8=4500, int8=4500),
    "h200": _card("H200", 141, 4.8, "NVIDIA H200 data sheet, SXM", **_HOPPER),
    "h100": _card("H100", 80, 3.35, "NVIDIA H100 data sheet, SXM", **_HOPPER),
    "a100": _card("A100 80 GB", 80, 2.039, "NVIDIA A100 80GB data sheet, SXM", **_AMPERE),
    "a100-40": _card("A100 40 GB", 40, 1.555, "NVIDIA A100 40GB data sheet", **_AMPERE),
    "l40s": _card("L40S", 48, 0.864, "NVIDIA L40S data sheet", bf16=362, fp8=733, int8=733),
    "l4": _card("L4", 24, 0.3, "NVIDIA L4 data sheet", bf16=121, fp8=242, int8=242),
    "a10": _card("A10", 24, 0.6, "NVIDIA A10 data sheet", bf16=125, int8=250),
    "rtx-4090": _card("RTX 4090", 24, 1.008, "NVIDIA Ada whitepaper", **_ADA),
    "rtx-3090": _card("RTX 3090", 24, 0.936, "NVIDIA GA102 whitepaper", bf16=71, int8=284),
    "mi300x": _card(
        "MI300X", 192, 5.3, "AMD MI300X data sheet", bf16=1307.4, fp8=2614.9, int8=2614.9
    ),
}  # fmt: skip

"""Scales of inputs that other programs round to floats of 8 bits; no product of ours uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.models.weight_map import LinearWeights
from quire.quantization.producers.float8 import LARGEST
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.scheme import QuantizationScheme


def input_scales(
    linears: Sequence[LinearWeights], schemes: Mapping[str, QuantizationScheme], sums: InputSums
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return ``input_scale`` (1,) float32 by name, and notices for the user.

    The largest input seen becomes the largest of E4M3; a matrix that saw none has the scale 1.

    Args:
        linears: Linears of a layer.
        schemes: Schemes by module; those without :attr:`QuantizationScheme.static_inputs` have no
            such scale.
        sums: Sums of the linears' inputs.
    """
    scales: dict[str, np.ndarray] = {}
    notices = []
    for linear in linears:
        seen = sums.largest.get(linear.modules, np.zeros(1)).max()
        scale = np.full(1, seen / LARGEST if seen > 0 else 1, np.float32)
        modules = [m for m in linear.modules if m in schemes and schemes[m].static_inputs]
        scales |= {f"{module}.input_scale": scale for module in modules}
        if modules and not seen > 0:
            notices.append(f"{modules[0]} saw no inputs; the scale of its inputs is 1")
    return scales, notices

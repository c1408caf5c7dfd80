"""GPTQ's format, as GPTQModel reads it: bits and groups may differ by rules of names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.gptq import store_gptq
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantizing.layouts.stored_layout import (
    HEAD,
    Fitting,
    Schemes,
    Shapes,
    StoredFormat,
    integers_of,
    kinds_of,
    words_only,
)
from quire.quantizing.scheme import QuantizationScheme


class GPTQLayout(StoredFormat):
    """Integers in groups; the last ones may be short."""

    name = "gptq"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out what does not fill words."""
        fitting.keep(schemes, shapes, words_only)
        fitting.group(shapes, lambda scheme, _: scheme.group_size)

    def _arrays(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        return store_gptq(matrix, zeros_less_one=matrix.zeros is None)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings of most matrices, and rules of the others."""
        (whole, _), *others = kinds_of(schemes, integers_of)
        version_2 = {not scheme.symmetric for scheme in schemes.values()}
        if len(version_2) > 1:
            raise ConfigError(
                "[quantize] --format gptq stores zeros of all matrices alike; got a recipe of "
                "symmetric and asymmetric ones. Use --format compressed-tensors."
            )
        dynamic: dict[str, Any] = {_exact("-:", name): {} for name in floats}
        for scheme, modules in others:
            for name in modules:
                dynamic[_exact("+:", name)] = {
                    "bits": scheme.bits,
                    "group_size": scheme.group_size,
                    "sym": scheme.symmetric,
                    "desc_act": scheme.act_order,
                }
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq_v2" if True in version_2 else "gptq",
            "bits": whole.bits,
            "group_size": whole.group_size,
            "sym": whole.symmetric,
            "desc_act": whole.act_order,
            "damp_percent": whole.damping,
            "true_sequential": whole.true_sequential,
            "lm_head": HEAD in schemes,
            **({"act_group_aware": True} if whole.group_aware else {}),
            **({"dynamic": dynamic} if dynamic else {}),
        }


def _exact(sign: str, name: str) -> str:
    return f"{sign}^{re.escape(name)}$"

"""HQQ's format: matrices say themselves what they are, so they may differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.hqq import store_hqq
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantizing.layouts.stored_layout import (
    Fitting,
    Schemes,
    Shapes,
    StoredFormat,
    dividing_group,
    integers_of,
    kinds_of,
    words_only,
)
from quire.quantizing.scheme import QuantizationScheme


class HQQLayout(StoredFormat):
    """Integers whose zeros are floats."""

    name = "hqq"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out what does not fill bytes; groups divide rows."""
        fitting.keep(schemes, shapes, words_only)
        fitting.group(shapes, dividing_group)

    def _arrays(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        return store_hqq(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings of most matrices; a reader of others takes their own parts."""
        kinds = kinds_of(schemes, integers_of)
        scheme = kinds[0][0]
        whole = {
            "nbits": scheme.bits,
            "channel_wise": True,
            "group_size": None if scheme.group_size == -1 else scheme.group_size,
            "optimize": True,
            "round_zero": False,
            "axis": 1,
            "view_as_float": False,
        }
        return {
            "quant_method": "hqq",
            "quant_config": {
                "weight_quant_params": whole,
                "scale_quant_params": None,
                "zero_quant_params": None,
                "offload_meta": False,
            },
            "skip_modules": [*floats, "lm_head"],
        }

"""HQQ's format: matrices say themselves what they are, so they may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.checkpoints.formats.hqq import store_hqq
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantizing.layouts.layout import (
    Fitting,
    Schemes,
    Shapes,
    dividing_group,
    integers_of,
    kinds_of,
    words_only,
)
from quire.quantizing.scheme import QuantizationScheme


@dataclass(frozen=True, slots=True)
class HQQLayout:
    """See :class:`~quire.quantizing.layouts.layout.StoredFormat`."""

    name: str = "hqq"

    def fit(
        self, schemes: Schemes, shapes: Shapes
    ) -> tuple[dict[str, QuantizationScheme], list[str]]:
        """Leave out what does not fill bytes; groups divide rows."""
        fitting = Fitting(self.name)
        fitting.check(schemes)
        fitting.keep(schemes, shapes, words_only)
        fitting.group(shapes, dividing_group)
        return fitting.fitted, fitting.notices

    def store(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
        """Return the parts of a matrix."""
        return {name: tensor_data(array) for name, array in store_hqq(matrix).items()}

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

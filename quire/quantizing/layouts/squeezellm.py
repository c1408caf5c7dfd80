"""SqueezeLLM's format: all matrices have codes of as many bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.checkpoints.formats.squeezellm import store_squeezellm
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.row_tables import TABLE_COLUMNS
from quire.quantizing.layouts.layout import Fitting, Schemes, Shapes
from quire.quantizing.scheme import QuantizationScheme


@dataclass(frozen=True, slots=True)
class SqueezeLLMLayout:
    """See :class:`~quire.quantizing.layouts.layout.StoredFormat`."""

    name: str = "squeezellm"

    def fit(
        self, schemes: Schemes, shapes: Shapes
    ) -> tuple[dict[str, QuantizationScheme], list[str]]:
        """Leave out rows whose codes do not fill words."""
        fitting = Fitting(self.name)
        fitting.check(schemes)
        fitting.keep(schemes, shapes, _whole_words)
        bits = sorted({scheme.bits for scheme in schemes.values()})
        if len(bits) > 1:
            raise ConfigError(
                f"[quantize] --format squeezellm stores all matrices in as many bits; got "
                f"{' and '.join(map(str, bits))}. Leave some floats instead."
            )
        return fitting.fitted, fitting.notices

    def store(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
        """Return the parts of a matrix."""
        return {name: tensor_data(array) for name, array in store_squeezellm(matrix).items()}

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the bits; which matrices are quantized their parts tell."""
        scheme = next(iter(schemes.values()))
        return {"quant_method": "squeezellm", "wbits": scheme.bits}


def _whole_words(_: QuantizationScheme, shape: tuple[int, int]) -> str:
    if shape[1] % TABLE_COLUMNS:
        return f"packs columns in multiples of {TABLE_COLUMNS}"
    return ""

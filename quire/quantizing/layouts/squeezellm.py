"""SqueezeLLM's format: all matrices have codes of as many bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.squeezellm import store_squeezellm
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.row_tables import TABLE_COLUMNS
from quire.quantizing.layouts.stored_layout import Fitting, Schemes, Shapes, StoredFormat
from quire.quantizing.scheme import QuantizationScheme


class SqueezeLLMLayout(StoredFormat):
    """Codes of tables of rows."""

    name = "squeezellm"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out rows whose codes do not fill words."""
        fitting.keep(schemes, shapes, _whole_words)
        bits = sorted({scheme.bits for scheme in schemes.values()})
        if len(bits) > 1:
            raise ConfigError(
                f"[quantize] --format squeezellm stores all matrices in as many bits; got "
                f"{' and '.join(map(str, bits))}. Leave some floats instead."
            )

    def _arrays(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        return store_squeezellm(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the bits; which matrices are quantized their parts tell."""
        scheme = next(iter(schemes.values()))
        return {"quant_method": "squeezellm", "wbits": scheme.bits}


def _whole_words(_: QuantizationScheme, shape: tuple[int, int]) -> str:
    if shape[1] % TABLE_COLUMNS:
        return f"packs columns in multiples of {TABLE_COLUMNS}"
    return ""

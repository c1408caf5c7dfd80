"""The format of bitsandbytes: NF4 or LLM.int8(), the same for all matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.bitsandbytes import store_four_bits, store_row_bytes
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantizing.layouts.stored_layout import Fitting, Schemes, Shapes, StoredFormat
from quire.quantizing.scheme import QuantizationScheme

#: Columns that share a scale in every row number at least this.
SMALLEST_GROUP = 16
#: Inputs from here on are multiplied apart, in 16 bits, by programs that round inputs.
THRESHOLD = 6.0


class BitsAndBytesLayout(StoredFormat):
    """NF4, FP4 or LLM.int8(), all matrices alike."""

    name = "bitsandbytes"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out rows that share too little with blocks."""
        if len(set(schemes.values())) > 1:
            kinds = " and ".join(sorted({str(scheme) for scheme in schemes.values()}))
            raise ConfigError(
                f"[quantize] --format bitsandbytes stores all matrices alike; got {kinds}. Use "
                "--skip for those that stay floats."
            )
        fitting.keep(schemes, shapes, _sixteens_only)

    def _arrays(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        if scheme.bits == 4:
            return store_four_bits(matrix, scheme.group_size, scheme.method)
        return store_row_bytes(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings that all matrices have."""
        scheme = next(iter(schemes.values()))
        four = scheme.bits == 4
        of_four_bits = {
            "bnb_4bit_quant_type": scheme.method,
            "bnb_4bit_use_double_quant": scheme.double_quant,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
        }
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": four,
            "load_in_8bit": not four,
            **(of_four_bits if four else {"llm_int8_threshold": THRESHOLD}),
            "llm_int8_skip_modules": [*floats, "lm_head"],
        }


def _sixteens_only(scheme: QuantizationScheme, shape: tuple[int, int]) -> str:
    if scheme.bits == 4 and shape[1] % SMALLEST_GROUP:
        return f"has blocks of rows of multiples of {SMALLEST_GROUP}"
    return ""

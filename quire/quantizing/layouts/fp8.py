"""The format that DeepSeek publishes FP8 in: scales of blocks, or one of a whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.checkpoints.formats.compressed_tensors import store_bytes
from quire.checkpoints.safetensors_writer import TensorData, tensor_data
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.float8 import BLOCK
from quire.quantizing.layouts.stored_layout import Fitting, Schemes, Shapes, StoredFormat
from quire.quantizing.scheme import QuantizationScheme


class FP8Layout(StoredFormat):
    """Bytes of floats; all matrices are alike."""

    name = "fp8"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Take all matrices, of any size."""
        kinds = {scheme.scales for scheme in schemes.values()}
        static = {scheme.static_inputs for scheme in schemes.values()}
        if kinds - {"block", "tensor"} or len(kinds) > 1 or len(static) > 1:
            got = " and ".join(sorted({str(scheme) for scheme in schemes.values()}))
            raise ConfigError(
                f"[quantize] --format fp8 stores --scales block or tensor, the same for all "
                f"matrices; got {got}. Use --format compressed-tensors."
            )
        fitting.keep(schemes, shapes, lambda scheme, shape: "")

    def store(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, TensorData]:
        """Return the parts of a matrix."""
        scale = "weight_scale_inv" if scheme.scales == "block" else "weight_scale"
        parts = store_bytes(matrix, scheme.scales, BLOCK, scale)
        return {name: tensor_data(a, "F8_E4M3" * (name == "weight")) for name, a in parts.items()}

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings that all matrices have."""
        static = any(scheme.static_inputs for scheme in schemes.values())
        block = any(scheme.scales == "block" for scheme in schemes.values())
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "static" if static else "dynamic",
            "modules_to_not_convert": [*floats, "lm_head"],
            **({"weight_block_size": [BLOCK, BLOCK]} if block else {}),
        }

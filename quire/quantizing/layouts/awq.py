"""AWQ's format: 4 bits, and one size of groups for all matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.checkpoints.formats.awq import store_awq
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantizing.layouts.stored_layout import (
    Fitting,
    Schemes,
    Shapes,
    StoredFormat,
    dividing_group,
    integers_of,
    kinds_of,
    largest_group,
    words_only,
)
from quire.quantizing.scheme import QuantizationScheme


class AWQLayout(StoredFormat):
    """Matrices of 4 bits, all of one kind."""

    name = "awq"

    def _fit(self, fitting: Fitting, schemes: Schemes, shapes: Shapes) -> None:
        """Leave out what does not fill words; the others get the smallest group of all."""
        fitting.keep(schemes, shapes, words_only)
        for module, scheme in fitting.fitted.items():
            self._check(module, scheme)
        common = self._common(fitting.fitted, shapes)
        fitting.group(shapes, lambda scheme, _: common)

    def _arrays(self, matrix: QuantizedTensor, scheme: QuantizationScheme) -> dict[str, np.ndarray]:
        return store_awq(matrix)

    def config(self, schemes: Schemes, floats: Sequence[str]) -> dict[str, Any]:
        """Return the settings that all matrices have."""
        whole = kinds_of(schemes, integers_of)[0][0]
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": whole.bits,
            "group_size": whole.group_size,
            "zero_point": not whole.symmetric,
            "modules_to_not_convert": list(floats) or None,
        }

    def _check(self, module: str, scheme: QuantizationScheme) -> None:
        if scheme.bits != 4:
            raise ConfigError(
                f"[quantize] --format awq stores 4 bits only; got {scheme.bits} for {module}. Use "
                "--format gptq or compressed-tensors."
            )
        if scheme.act_order:
            raise ConfigError(
                f"[quantize] --format awq cannot store --act-order; got it for {module}. Use "
                "--format gptq or compressed-tensors."
            )

    def _common(self, schemes: Schemes, shapes: Shapes) -> int:
        kinds = {(scheme.bits, scheme.symmetric) for scheme in schemes.values()}
        if len(kinds) > 1:
            raise ConfigError(
                f"[quantize] --format awq stores all matrices alike; got a recipe with "
                f"{len(kinds)} kinds. Use --format gptq or compressed-tensors."
            )
        sizes = [dividing_group(scheme, shapes[name][1]) for name, scheme in schemes.items()]
        size = min((size for size in sizes if size != -1), default=-1)
        if size != -1:
            for name in schemes:
                size = largest_group(size, shapes[name][1])
        return size

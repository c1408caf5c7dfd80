"""Which matrices of a model are quantized at load, and how; and what stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.config import ModelOptions
from quire.quantization.round_to_nearest import Scheme, create_scheme


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """What ``--quantization`` and ``--activations`` ask for.

    Attributes:
        layers: For the linears of the layers; None keeps the checkpoint's weights.
        tables: For embedding and output head; None keeps the checkpoint's weights.
        exact_activations: Multiply quantized weights with float32 activations.
    """

    layers: Scheme | None = None
    tables: Scheme | None = None
    exact_activations: bool = False

    def matrix_bytes(self, shape: tuple[int, ...], is_table: bool, dtype_bytes: int) -> int:
        """Return what a matrix of ``dtype_bytes`` an element will take, padding left out."""
        rows, columns = shape
        scheme = self.tables if is_table else self.layers
        if scheme is None:
            return rows * columns * dtype_bytes
        groups = -(-columns // (scheme.group_size or columns))
        return rows * (columns * scheme.bits // 8 + groups * (2 if scheme.symmetric else 4))


def create_plan(options: ModelOptions) -> QuantizationPlan:
    """Return the plan of an engine's settings."""
    exact = options.activations == "fp32"
    if options.quantization is None:
        return QuantizationPlan(exact_activations=exact)
    size = options.quantization_group_size
    layers = create_scheme(options.quantization, size)
    return QuantizationPlan(layers, create_scheme("int8", size), exact)

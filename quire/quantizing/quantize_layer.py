"""The matrices of one layer, quantized by their schemes; which layer, and what for, is not known.

N rows (outputs), K columns (inputs) of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.checkpoints.formats.stored_matrix import UnpackedMatrix
from quire.models.weight_map import LinearWeights
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.methods import METHODS
from quire.quantizing.produce import LinkedMatrices, produce
from quire.quantizing.scheme import QuantizationScheme

#: Inputs that a calibrated method needs to have seen; with fewer a matrix is rounded to nearest.
MIN_ROWS = 64
#: Columns whose products with all before them are summed at a time, for a matrix's error.
ERROR_COLUMNS = 256


@dataclass(slots=True)
class LayerResult:
    """The quantized matrices of a layer, and their errors.

    Attributes:
        matrices: Matrices by module.
        errors: Errors by module: of the outputs over all calibration samples, squares relative to
            those of the outputs themselves; of the weights where no inputs were seen.
        too_few: Modules whose method gave way to plain rounding, and the inputs they had.
    """

    matrices: dict[str, UnpackedMatrix] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    too_few: dict[str, int] = field(default_factory=dict)


class LayerQuantizer:
    """Quantizes linears.

    Args:
        schemes: Schemes by module; other modules stay floats.
        threads: Number of threads that share the rows.
        on_weights: A function called with the number of weights that are done.
    """

    def __init__(
        self,
        schemes: Mapping[str, QuantizationScheme],
        threads: int,
        on_weights: Callable[[int], None],
    ) -> None:
        self._schemes, self._threads, self._on_weights = schemes, threads, on_weights

    def quantize(
        self,
        linears: Sequence[LinearWeights],
        weights: Mapping[str, np.ndarray],
        sums: InputSums,
    ) -> LayerResult:
        """Quantize linears; matrices that share inputs are solved together.

        Args:
            linears: Linears of a layer.
            weights: (N, K) float32 by module; each is asked for once.
            sums: Sums of the inputs of linears that have a calibrated method.

        Raises:
            ModelLoadError: A weight or an input is infinite or NaN.
        """
        result = LayerResult()
        for linear in linears:
            seen = sums.num_rows.get(linear.modules, 0)
            groups: dict[QuantizationScheme, list[str]] = {}
            for module in linear.modules:
                scheme = self._schemes.get(module)
                if scheme is None:
                    continue
                other = METHODS[scheme.method].without_inputs
                if other and seen < MIN_ROWS:
                    result.too_few[module] = seen
                    scheme = scheme.changed({"method": other})
                groups.setdefault(scheme, []).append(module)
            for scheme, modules in groups.items():
                found = [weights[module] for module in modules]
                products = sums.sums.get(linear.modules)
                linked = LinkedMatrices(scheme, modules, found, products, self._threads)
                made = produce(linked)
                for module, weight, matrix in zip(modules, found, made, strict=True):
                    result.matrices[module] = matrix
                    result.errors[module] = relative_error(weight, matrix, products)
                    self._on_weights(weight.size)
        return result


def relative_error(weight: np.ndarray, made: UnpackedMatrix, products: np.ndarray | None) -> float:
    """Return the square of a matrix's error over the square of the matrix.

    Args:
        weight: (N, K) float32.
        made: The matrix after quantization.
        products: (K, K) sums of products of inputs, for the error of outputs; None for weights'.
    """
    difference = weight - made.float32()
    if products is None:
        return float(np.square(difference).sum() / max(np.square(weight).sum(), 1e-30))
    sizes = np.zeros(2)
    for first in range(0, len(products), ERROR_COLUMNS):
        last = first + ERROR_COLUMNS
        panel = products[:last, first:last].astype(np.float32)
        panel[:first] *= 2  # for those on the other side of the diagonal
        for number, matrix in enumerate((difference, weight)):
            sizes[number] += np.vdot(matrix[:, :last] @ panel, matrix[:, first:last])
    return max(0.0, float(sizes[0])) / max(float(sizes[1]), 1e-30)

"""The matrices of one layer, quantized by their schemes; which layer, and what for, is not known.

N rows (outputs), K columns (inputs) of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from quire.kernels.quantized_tensor import QuantizedTensor
from quire.models.weight_map import LinearWeights
from quire.quantization.producers.gptq import GPTQSettings, quantize_gptq
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantizing.input_sums import InputSums
from quire.quantizing.scheme import Scheme

#: Inputs that a calibrated method needs to have seen; with fewer a matrix is rounded to nearest.
MIN_ROWS = 64
#: Rows of a matrix whose error is summed at a time.
ERROR_ROWS = 1024


@dataclass(slots=True)
class LayerResult:
    """What came out.

    Attributes:
        matrices: By module.
        errors: Of the outputs of each over all calibration samples, squares relative to those of
            the outputs themselves; of the weights where no inputs were seen.
        too_few: Modules whose method gave way to plain rounding, and the inputs they had.
    """

    matrices: dict[str, QuantizedTensor] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    too_few: dict[str, int] = field(default_factory=dict)


class LayerQuantizer:
    """Quantizes linears.

    Args:
        schemes: By module; others stay floats.
        threads: To share rows out among.
        on_weights: Called with the weights of what is done.
    """

    def __init__(
        self, schemes: Mapping[str, Scheme], threads: int, on_weights: Callable[[int], None]
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
            linears: Of a layer.
            weights: (N, K) float32 by module; each is asked for once.
            sums: Of the inputs of linears that have a calibrated method.

        Raises:
            ModelLoadError: A weight or an input is infinite or NaN.
        """
        result = LayerResult()
        for linear in linears:
            seen = sums.num_rows.get(linear.modules, 0)
            groups: dict[Scheme, list[str]] = {}
            for module in linear.modules:
                scheme = self._schemes.get(module)
                if scheme is None:
                    continue
                if scheme.method != "rtn" and seen < MIN_ROWS:
                    result.too_few[module] = seen
                    scheme = replace(scheme, method="rtn", act_order=False)
                groups.setdefault(scheme, []).append(module)
            for scheme, modules in groups.items():
                found = [weights[module] for module in modules]
                products = sums.sums.get(linear.modules)
                made = self._together(scheme, modules, found, products)
                for module, weight, matrix in zip(modules, found, made, strict=True):
                    result.matrices[module] = matrix
                    result.errors[module] = relative_error(weight, matrix, products)
                    self._on_weights(weight.size)
        return result

    def _together(
        self,
        scheme: Scheme,
        modules: Sequence[str],
        weights: Sequence[np.ndarray],
        products: np.ndarray | None,
    ) -> list[QuantizedTensor]:
        if scheme.method == "gptq":
            assert products is not None, modules
            settings = GPTQSettings(scheme.act_order, scheme.damping)
            stacked = np.concatenate(weights)
            whole = quantize_gptq(
                " and ".join(modules), stacked, products, scheme.grid, settings, self._threads
            )
            ends = np.cumsum([len(weight) for weight in weights])
            return [
                _rows_of(whole, module, end - len(weight), end)
                for module, weight, end in zip(modules, weights, ends, strict=True)
            ]
        pieces = [
            (module, weight[begin : begin + ERROR_ROWS])
            for module, weight in zip(modules, weights, strict=True)
            for begin in range(0, len(weight), ERROR_ROWS)
        ]
        with ThreadPoolExecutor(self._threads) as pool:
            made = list(
                pool.map(lambda piece: quantize_rtn(piece[0], piece[1], scheme.grid), pieces)
            )
        return [_joined([part for part in made if part.name == module]) for module in modules]


def relative_error(weight: np.ndarray, made: QuantizedTensor, products: np.ndarray | None) -> float:
    """Return the square of a matrix's error over the square of the matrix.

    Args:
        weight: (N, K) float32.
        made: What it became.
        products: (K, K) sums of products of inputs, for the error of outputs; None for weights'.
    """
    difference = weight - made.float32()
    if products is None:
        return float(np.square(difference).sum() / max(np.square(weight).sum(), 1e-30))
    sums = products.astype(np.float32)
    sizes = []
    for matrix in (difference, weight):
        size = 0.0
        for begin in range(0, len(matrix), ERROR_ROWS):
            rows = matrix[begin : begin + ERROR_ROWS]
            size += float(np.vdot(rows @ sums, rows))
        sizes.append(size)
    return max(0.0, sizes[0]) / max(sizes[1], 1e-30)


def _rows_of(whole: QuantizedTensor, name: str, begin: int, end: int) -> QuantizedTensor:
    zeros = whole.zeros
    return replace(
        whole,
        name=f"{name}.weight",
        codes=whole.codes[begin:end],
        scales=whole.scales[begin:end],
        zeros=None if zeros is None else zeros[begin:end],
    )


def _joined(parts: Sequence[QuantizedTensor]) -> QuantizedTensor:
    first = parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        first,
        name=f"{first.name}.weight",
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=np.concatenate(zeros) if zeros else None,
    )

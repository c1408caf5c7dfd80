"""Functions that quantize matrices, one for each method, which call its producer.

N rows (outputs), K columns (inputs) of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from quire.checkpoints.formats.stored_matrix import UnpackedMatrix
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.row_tables import join_outliers
from quire.quantization.producers.float4 import global_factor, quantize_mxfp4, quantize_nvfp4
from quire.quantization.producers.float8 import quantize_float8
from quire.quantization.producers.gptq import GPTQSettings, quantize_gptq
from quire.quantization.producers.half_quadratic import quantize_hqq
from quire.quantization.producers.normal_float import quantize_fp4, quantize_nf4
from quire.quantization.producers.quip import quantize_quip, rotate_inputs
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantization.producers.squeezellm import (
    Clustering,
    column_importance,
    outlier_threshold,
    quantize_tables,
)
from quire.quantization.producers.whole_bytes import quantize_bytes
from quire.quantizing.scheme import QuantizationScheme

#: Rows of a matrix that are rounded together: results do not depend on how many threads there are.
ROWS = 1024


@dataclass(frozen=True, slots=True)
class LinkedMatrices:
    """Matrices that share their inputs and their scheme.

    Attributes:
        scheme: The matrices' scheme.
        modules: The matrices' names.
        weights: (N, K) float32 each.
        products: (K, K) float64, sums of products of the inputs; None where none were seen.
        threads: Number of threads that share the rows.
    """

    scheme: QuantizationScheme
    modules: Sequence[str]
    weights: Sequence[np.ndarray]
    products: np.ndarray | None
    threads: int


def produce(linked: LinkedMatrices) -> Sequence[UnpackedMatrix]:
    """Quantize matrices by their scheme's method.

    Raises:
        ModelLoadError: A weight or an input is infinite or NaN.
    """
    return _PRODUCERS[linked.scheme.method](linked)


def _gptq(linked: LinkedMatrices) -> list[QuantizedTensor]:
    scheme = linked.scheme
    assert linked.products is not None, linked.modules
    whole = quantize_gptq(
        " and ".join(linked.modules),
        np.concatenate(linked.weights),
        linked.products,
        scheme.grid,
        GPTQSettings(scheme.act_order, scheme.damping, scheme.group_aware),
        linked.threads,
    )
    ends = np.cumsum([len(weight) for weight in linked.weights])
    return [
        _rows_of(whole, module, end - len(weight), end)
        for module, weight, end in zip(linked.modules, linked.weights, ends, strict=True)
    ]


def _rounded(linked: LinkedMatrices) -> list[QuantizedTensor]:
    grid = linked.scheme.grid
    return _by_rows(linked, lambda name, weight: quantize_rtn(name, weight, grid))


def _bytes(linked: LinkedMatrices) -> list[QuantizedTensor]:
    return _by_rows(linked, quantize_bytes)


def _floats(linked: LinkedMatrices) -> list[QuantizedTensor]:
    scales = linked.scheme.scales
    return _each(linked, lambda name, weight: quantize_float8(name, weight, scales))


def _nvfp4(linked: LinkedMatrices) -> list[QuantizedTensor]:
    # Programs compute matrices that share inputs as one, so they have one factor.
    factor = global_factor(linked.weights)
    return _each(linked, lambda name, weight: quantize_nvfp4(name, weight, factor))


def _mxfp4(linked: LinkedMatrices) -> list[QuantizedTensor]:
    return _each(linked, quantize_mxfp4)


def _normal_floats(linked: LinkedMatrices) -> list[QuantizedTensor]:
    double = linked.scheme.double_quant
    return _each(linked, lambda name, weight: quantize_nf4(name, weight, double))


def _small_floats(linked: LinkedMatrices) -> list[QuantizedTensor]:
    double = linked.scheme.double_quant
    return _each(linked, lambda name, weight: quantize_fp4(name, weight, double))


def _half_quadratic(linked: LinkedMatrices) -> list[QuantizedTensor]:
    bits, size = linked.scheme.bits, max(0, linked.scheme.group_size)
    return _by_rows(linked, lambda name, weight: quantize_hqq(name, weight, bits, size))


def _weighted_tables(linked: LinkedMatrices) -> list[QuantizedTensor]:
    return _tables(linked, linked.products)


def _plain_tables(linked: LinkedMatrices) -> list[QuantizedTensor]:
    return _tables(linked, None)


def _tables(linked: LinkedMatrices, products: np.ndarray | None) -> list[QuantizedTensor]:
    importance = column_importance(products, linked.weights[0].shape[1])
    bits, share = linked.scheme.bits, linked.scheme.sparse
    clusterings = {
        module: Clustering(bits, importance, outlier_threshold(weight, importance, share))
        for module, weight in zip(linked.modules, linked.weights, strict=True)
    }
    return _by_rows(linked, lambda name, weight: quantize_tables(name, weight, clusterings[name]))


def _lattice(linked: LinkedMatrices) -> list[LatticeMatrix]:
    scheme, first = linked.scheme, linked.modules[0]
    columns = linked.weights[0].shape[1]
    inputs = rotate_inputs(first, columns, linked.products, scheme.damping)
    return [
        quantize_quip(f"{module}.weight", weight, inputs, scheme.bits, linked.threads)
        for module, weight in zip(linked.modules, linked.weights, strict=True)
    ]


def _each(
    linked: LinkedMatrices, quantize: Callable[[str, np.ndarray], QuantizedTensor]
) -> list[QuantizedTensor]:
    """Quantize whole matrices, on all threads."""
    names = [f"{module}.weight" for module in linked.modules]
    with ThreadPoolExecutor(linked.threads) as pool:
        return list(pool.map(quantize, names, linked.weights))


def _by_rows(
    linked: LinkedMatrices, quantize: Callable[[str, np.ndarray], QuantizedTensor]
) -> list[QuantizedTensor]:
    """Quantize matrices whose rows have nothing to do with each other, on all threads."""
    pieces = [
        (module, weight[begin : begin + ROWS])
        for module, weight in zip(linked.modules, linked.weights, strict=True)
        for begin in range(0, len(weight), ROWS)
    ]
    with ThreadPoolExecutor(linked.threads) as pool:
        made = list(pool.map(lambda piece: quantize(*piece), pieces))
    return [_joined([part for part in made if part.name == module]) for module in linked.modules]


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
    tables = [part.tables for part in parts if part.tables is not None]
    outliers = [part.outliers for part in parts if part.outliers is not None]
    return replace(
        first,
        name=f"{first.name}.weight",
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=np.concatenate(zeros) if zeros else None,
        tables=np.concatenate(tables) if tables else None,
        outliers=join_outliers(outliers) if outliers else None,
    )


_PRODUCERS: dict[str, Callable[[LinkedMatrices], Sequence[UnpackedMatrix]]] = {
    "rtn": _rounded,
    "gptq": _gptq,
    "awq": _rounded,
    "fp8": _floats,
    "int8": _bytes,
    "smoothquant": _bytes,
    "llm-int8": _bytes,
    "nvfp4": _nvfp4,
    "mxfp4": _mxfp4,
    "nf4": _normal_floats,
    "fp4": _small_floats,
    "hqq": _half_quadratic,
    "squeezellm": _weighted_tables,
    "kmeans": _plain_tables,
    "quip": _lattice,
}

"""SqueezeLLM: each row's weights are clustered, and the largest stay what they are.

A row's table has the means of its clusters: those that make ``sum_k h[k] * (weight[k] - table)**2``
small, where ``h`` tells how much an input's weights count. SqueezeLLM takes the diagonal of the
Fisher information; here, where nothing is differentiated, it is that of the inputs' products, the
mean square of each input. Clusters of numbers are runs of the sorted ones. The first ones are the
best that begin at some places, by dynamic programming; the places have equal shares of the density
of weights to the power of 1/3, as the best of many clusters do. Lloyd's iteration improves them.
N rows, K columns.

Source: SqueezeLLM (Kim et al. 2023); the density: Panter and Dite 1951.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.kernels.matrices.row_tables import Outliers
from quire.quantization.producers.finite_weights import check_finite

ROUNDS = 60
#: Places where a cluster may begin at first, for each cluster.
PLACES = 4
#: Rows whose first clusters are found together.
CHUNK = 64
#: Of the mean importance, what each input has at least: weights of silent ones count a little.
LEAST_IMPORTANCE = 1e-3
#: Largest of float16.
HIGHEST = 65504.0


@dataclass(frozen=True, slots=True)
class Clustering:
    """The settings of a matrix's clusters, besides its weights.

    Attributes:
        bits: Bits of a code, 3 or 4.
        importance: (K,) float64, positive.
        threshold: Score above which a weight stays a float; None where no weight does.
    """

    bits: int
    importance: np.ndarray
    threshold: float | None = None


def column_importance(products: np.ndarray | None, columns: int) -> np.ndarray:
    """Return how much each input counts, (K,) float64 with a mean of about 1.

    Args:
        products: (K, K) sums of products of inputs; None where they are all alike.
        columns: K.
    """
    squares = np.ones(columns) if products is None else np.diag(products).astype(np.float64)
    mean = squares.mean()
    if not mean > 0:
        return np.ones(columns)
    return np.asarray(squares / mean + LEAST_IMPORTANCE)


def outlier_threshold(weight: np.ndarray, importance: np.ndarray, share: float) -> float | None:
    """Return the score that a share of the weights is over, None for no share."""
    count = int(round(share * weight.size))
    if count == 0:
        return None
    scores = _scores(weight, importance).ravel()
    return float(np.partition(scores, -count - 1)[-count - 1])


def quantize_tables(name: str, weight: np.ndarray, clustering: Clustering) -> QuantizedTensor:
    """Cluster the rows of a matrix, each on its own.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32, K a multiple of 32.
        clustering: Settings of the whole matrix.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    kept = None
    if clustering.threshold is not None:
        kept = _scores(weight, clustering.importance) > clustering.threshold
    tables = _tables(weight, clustering, kept)
    codes = _nearest(np.where(kept, 0, weight) if kept is not None else weight, tables)
    outliers = None
    if kept is not None:
        rows, columns = np.nonzero(kept)
        values = weight[kept] - tables.astype(np.float32)[rows, codes[kept]]
        starts = np.searchsorted(rows, np.arange(len(weight) + 1)).astype(np.int32)
        outliers = Outliers(starts, columns.astype(np.int32), values)
    return QuantizedTensor(
        name=name,
        bits=clustering.bits,
        group_size=padded(weight.shape[1]),
        codes=codes,
        scales=np.empty((len(weight), 0), np.float16),
        tables=tables,
        outliers=outliers,
    )


def _scores(weight: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return what errors of weights would count if they were 0."""
    scores: np.ndarray = np.square(weight) * importance.astype(np.float32)
    return scores


def _tables(weight: np.ndarray, clustering: Clustering, kept: np.ndarray | None) -> np.ndarray:
    """Return the tables of rows in ascending order, (N, 2 ** bits) float16.

    Args:
        weight: (N, K).
        clustering: Settings of the clusters.
        kept: (N, K), whether a weight does not count.
    """
    count = 1 << clustering.bits
    order = np.argsort(weight, axis=1, kind="stable")
    values = np.take_along_axis(weight, order, axis=1).astype(np.float64)
    counts = clustering.importance[order]
    if kept is not None:
        counts = counts * ~np.take_along_axis(kept, order, axis=1)
    weights = _cumulated(counts)
    moments = _cumulated(counts * values)
    ends = np.concatenate(
        [
            _first_borders(values[rows], counts[rows], (weights[rows], moments[rows]), count)
            for begin in range(0, len(values), CHUNK)
            for rows in [slice(begin, begin + CHUNK)]
        ]
    )
    centres = np.zeros((len(values), count))
    for _ in range(ROUNDS):
        size = np.diff(np.take_along_axis(weights, ends, axis=1), axis=1)
        moment = np.diff(np.take_along_axis(moments, ends, axis=1), axis=1)
        full = size > 0
        better = np.sort(np.where(full, moment / np.where(full, size, 1), centres), axis=1)
        if np.array_equal(better, centres):
            break
        centres = better
        ends[:, 1:-1] = _count_below(values, (centres[:, 1:] + centres[:, :-1]) / 2)
    return np.clip(centres, -HIGHEST, HIGHEST).astype(np.float16)


def _cumulated(numbers: np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, ... K of each row, (N, K + 1)."""
    return np.pad(np.cumsum(numbers, axis=1), ((0, 0), (1, 0)))


def _first_borders(
    values: np.ndarray, counts: np.ndarray, sums: tuple[np.ndarray, np.ndarray], count: int
) -> np.ndarray:
    """Return where clusters of rows begin and end, (N, count + 1): the best of some places.

    Args:
        values: (N, K) float64, ascending.
        counts: (N, K), how much each counts.
        sums: (N, K + 1) each, counts and moments, cumulated.
        count: Clusters.
    """
    rows, columns = values.shape
    gaps = np.diff(values, axis=1, append=values[:, -1:])
    shares = _cumulated(np.cbrt(counts * np.square(gaps)))
    bins = PLACES * count
    wanted = shares[:, -1:] * (np.arange(1, bins) / bins)
    places = np.zeros((rows, bins + 1), np.int64)
    places[:, 1:-1] = np.minimum(_count_below(shares, wanted), columns)
    places[:, -1] = columns
    weights, moments = (np.take_along_axis(part, places, axis=1) for part in sums)
    size = weights[:, None, :] - weights[:, :, None]
    moment = moments[:, None, :] - moments[:, :, None]
    # Of the runs from place i to place j: all but the sum of squares, which each division has.
    gain = np.square(moment) / np.where(size > 0, size, np.inf)
    gain[:, np.tri(bins + 1, k=-1, dtype=bool)] = -np.inf
    best, before = gain[:, 0, :], []
    for _ in range(count - 1):
        total = best[:, :, None] + gain
        before.append(total.argmax(axis=1))
        best = np.take_along_axis(total, before[-1][:, None, :], axis=1)[:, 0, :]
    at = np.full((rows, 1), bins)
    chosen = [at]
    for step in reversed(before):
        at = np.take_along_axis(step, at, axis=1)
        chosen.append(at)
    chosen.append(np.zeros_like(at))
    return np.take_along_axis(places, np.concatenate(chosen[::-1], axis=1), axis=1)


def _count_below(rows: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Return how many numbers of each ascending row (N, K) are below borders (N, B)."""
    below = np.zeros(borders.shape, np.int64)
    step = 1 << rows.shape[1].bit_length()
    while step:
        # Of the numbers before ``next``, the last one decides.
        further = below + step
        inside = further <= rows.shape[1]
        last = np.take_along_axis(rows, np.where(inside, further - 1, 0), axis=1)
        below = np.where(inside & (last < borders), further, below)
        step >>= 1
    return below


def _nearest(weight: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Return the codes of the nearest values of ascending tables, (N, K) uint8."""
    values = tables.astype(np.float32)
    borders = (values[:, 1:] + values[:, :-1]) / 2
    codes = np.zeros(weight.shape, np.uint8)
    for i in range(borders.shape[1]):
        codes += weight > borders[:, i : i + 1]
    return codes

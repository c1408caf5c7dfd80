"""Adapters of low rank, added to a linear for some of a batch's rows: their definition and checks.

For a row ``t`` whose request has an adapter, and each of the adapter's parts,
``y[t, first + n] += sum_r (scale * sum_k x[t, k] * down[r, k]) * up[n, r]`` in float32; ``down``
and ``up`` are held as they are stored. A row's bits depend on that row and its adapter alone.

Source: Hu et al. 2021 (LoRA); rows grouped by adapter as in Chen et al. 2023 (Punica, SGMV).
CPU: native/cpu/low_rank.cpp. T rows, B requests, R rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.errors import UnsupportedInputError
from quire.kernels.batch.forward_batch import Array, BatchRows
from quire.kernels.matrices.host_tensor import HostTensor

#: An adapter of one linear on a backend; only the backend that made it looks inside.
LowRank = Any


@dataclass(frozen=True, slots=True)
class LowRankPart:
    """An adapter's addition to one of the matrices that a linear is stacked of.

    Attributes:
        first_output: Index of the matrix's first output in the linear.
        down: (R, in_features).
        up: (outputs of the matrix, R).
        scale: Factor of the product with ``down``.
    """

    first_output: int
    down: HostTensor
    up: HostTensor
    scale: float


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Rows of an array of activations by their adapter.

    Attributes:
        keys: The adapters' slots, from 1 on, each once; of routed rows any numbers above 0.
        bounds: Beginning and end of each adapter's rows in ``rows``.
        rows: int32, on the host; rows without an adapter are not there.
    """

    keys: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    rows: npt.NDArray[np.int32]


def group_rows(rows: BatchRows, to_numpy: Callable[[Array], Any]) -> RowGroups:
    """Return which rows have which adapter, found once for all linears that get these rows.

    Args:
        rows: Rows of a step with ``adapters``.
        to_numpy: The backend's function that copies an array to the host.
    """
    if rows.adapter_groups is None:
        rows.adapter_groups = group_by(row_adapters(rows, to_numpy))
    found: RowGroups = rows.adapter_groups
    return found


def row_adapters(rows: BatchRows, to_numpy: Callable[[Array], Any]) -> npt.NDArray[np.int32]:
    """Return the slot of each row's adapter, of a step with ``adapters``."""
    batch = rows.batch
    lengths = np.diff(to_numpy(batch.query_start_loc))
    slots: npt.NDArray[np.int32] = to_numpy(batch.adapters).repeat(lengths)
    return slots if rows.indices is None else slots[to_numpy(rows.indices)]


def group_by(keys: npt.NDArray[Any]) -> RowGroups:
    """Return where each key is; 0 is none."""
    order = keys.argsort(kind="stable").astype(np.int32)
    order = order[np.count_nonzero(keys == 0) :]
    numbers, begins = np.unique(keys[order], return_index=True)
    edges = [*begins.tolist(), len(order)]
    return RowGroups(tuple(numbers.tolist()), tuple(pairwise(edges)), order)


def check_parts(parts: Sequence[LowRankPart], in_features: int, out_features: int) -> None:
    """Refuse parts that do not fit a linear.

    Raises:
        UnsupportedInputError: Shapes disagree, or types differ.
    """
    for part in parts:
        (rank, columns), (outputs, up_rank) = part.down.shape, part.up.shape
        last = part.first_output + outputs
        if columns != in_features or up_rank != rank or last > out_features or rank < 1:
            raise UnsupportedInputError(
                f"[low_rank] {part.down.name} must be (R, {in_features}) and {part.up.name} "
                f"(outputs, R), up to output {out_features}; got {part.down.shape} and "
                f"{part.up.shape} from output {part.first_output} on."
            )
    types = {tensor.dtype for part in parts for tensor in (part.down, part.up)}
    if len(types) != 1:
        raise UnsupportedInputError(
            f"[low_rank] an adapter's matrices of a linear must be of one type; got {types}."
        )

"""Some rows or columns of a checkpoint's tensors, whatever they are held in.

N rows (outputs), K columns (inputs), G groups of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from quire.checkpoints.formats.stored_matrix import UnpackedMatrix
from quire.core.errors import UnsupportedArchitectureError
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor

Tensor = HostTensor | BlockMatrix | UnpackedMatrix
#: Numbers of rows.
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Picks:
    """Parts of tensors that are taken, by the tensors' names; others are taken whole.

    Attributes:
        rows: Indices of rows, in the kernels' order.
        outputs: The same of matrices that are stored (in, out).
        columns: Range of inputs.
        inputs: The same of matrices that are stored (in, out).
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    outputs: dict[str, Rows] = field(default_factory=dict)
    columns: dict[str, range] = field(default_factory=dict)
    inputs: dict[str, range] = field(default_factory=dict)


def pick_rows(tensor: Tensor, rows: Rows) -> Tensor:
    """Return a tensor of these rows; neighbours stay a view, of which no other page is read.

    Raises:
        UnsupportedArchitectureError: The matrix is rotated, so that no row stands alone.
    """
    part = _neighbours(rows)
    if isinstance(tensor, HostTensor):
        return replace(tensor, array=tensor.array[part])
    if isinstance(tensor, BlockMatrix):
        shape = (len(rows), tensor.shape[1])
        return replace(tensor, shape=shape, rows=tensor.rows[part])
    if isinstance(tensor, QuantizedTensor):
        return tensor.with_rows(part)
    raise UnsupportedArchitectureError(
        f"[load] rows of {tensor.name} must be put in another order, which matrices in "
        f"{tensor.form} do not allow. Use another format of this model."
    )


def pick_outputs(tensor: Tensor, rows: Rows) -> HostTensor:
    """Return the same of a matrix that is stored (in, out), where rows are its last dim."""
    values = tensor
    if not isinstance(values, HostTensor):
        values = HostTensor(tensor.name, "float32", tensor.float32())
    return replace(values, array=np.ascontiguousarray(values.array[:, _neighbours(rows)]))


def pick_columns(tensor: Tensor, columns: range) -> Tensor:
    """Return a matrix of neighbouring inputs, which begin where groups or blocks do."""
    part = slice(columns.start, columns.stop)
    if isinstance(tensor, HostTensor):
        return replace(tensor, array=np.ascontiguousarray(tensor.array[:, part]))
    if isinstance(tensor, BlockMatrix):
        whole, row_bytes = tensor.shape[1], tensor.rows.shape[1]
        bounds = slice(*(edge * row_bytes // whole for edge in (columns.start, columns.stop)))
        rows = np.ascontiguousarray(tensor.rows[:, bounds])
        return replace(tensor, shape=(tensor.shape[0], len(columns)), rows=rows)
    assert isinstance(tensor, QuantizedTensor), tensor.form
    return tensor.with_columns(part)


def pick_inputs(tensor: Tensor, columns: range) -> Tensor:
    """Return the same of a matrix of floats that is stored (in, out)."""
    return pick_rows(tensor, np.array(columns))


def _neighbours(rows: Rows) -> Rows | slice:
    """Return rows as a slice where they follow each other."""
    if len(rows) and (rows == np.arange(rows[0], rows[0] + len(rows))).all():
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return rows

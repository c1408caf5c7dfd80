"""Some rows of a checkpoint's tensors, in any order, whatever they are held in.

N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from quire.core.errors import UnsupportedArchitectureError
from quire.kernels.block_matrix import BlockMatrix
from quire.kernels.host_tensor import HostTensor
from quire.kernels.quantized_tensor import QuantizedTensor
from quire.quantization.formats.stored_matrix import UnpackedMatrix

Tensor = HostTensor | BlockMatrix | UnpackedMatrix
#: Numbers of rows.
Rows = npt.NDArray[np.int64]


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


def _neighbours(rows: Rows) -> Rows | slice:
    """Return rows as a slice where they follow each other."""
    if len(rows) and (rows == np.arange(rows[0], rows[0] + len(rows))).all():
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return rows

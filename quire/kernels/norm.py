"""RMSNorm and LayerNorm of rows: their definition and the checks all implementations share.

``rms_norm``:   ``out[t, d] = x[t, d] / sqrt(mean(x[t, :] ** 2) + eps) * weight[d]``
``layer_norm``: ``out[t, d] = (x[t, d] - mean) / sqrt(variance + eps) * weight[d] + bias[d]`` with
the mean and the (biased) variance of ``x[t, :]``.

With ``residual`` they first do ``residual += x`` in place, then normalise it. x, residual and out
are (T, D) float32 with contiguous rows, weight and bias (D,) float32; ``out`` may be ``x``.
A row's result depends on that row alone, bit for bit.

Source: Zhang and Sennrich 2019 (RMSNorm); Ba, Kiros and Hinton 2016 (LayerNorm).
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array


def check(op: str, rows: tuple[Array, ...], weights: tuple[Array, ...]) -> None:
    """Refuse rows that are not all of one (T, D), and weights that are not (D,).

    Raises:
        UnsupportedInputError: Shapes disagree.
    """
    shape = rows[0].shape
    if len(shape) != 2 or any(row is not None and row.shape != shape for row in rows):
        shapes = ", ".join(str(tuple(row.shape)) for row in rows if row is not None)
        raise UnsupportedInputError(f"[{op}] rows must all have one shape (T, D); got {shapes}.")
    if any(weight.shape != shape[1:] for weight in weights):
        shapes = ", ".join(str(tuple(weight.shape)) for weight in weights)
        raise UnsupportedInputError(
            f"[{op}] weights must have shape ({shape[1]},) to match x {tuple(shape)}; got {shapes}."
        )

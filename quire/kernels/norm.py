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


def check(
    op: str, x: Array, out: Array, residual: Array | None, weight: Array, bias: Array | None = None
) -> None:
    """Refuse rows that are not all of one (T, D), and weights that are not (D,).

    Raises:
        UnsupportedInputError: Shapes disagree.
    """
    shape = x.shape
    same = out.shape == shape and (residual is None or residual.shape == shape)
    if len(shape) != 2 or not same:
        shapes = ", ".join(str(tuple(r.shape)) for r in (x, residual, out) if r is not None)
        raise UnsupportedInputError(f"[{op}] rows must all have one shape (T, D); got {shapes}.")
    if weight.shape != shape[1:] or (bias is not None and bias.shape != shape[1:]):
        shapes = ", ".join(str(tuple(w.shape)) for w in (weight, bias) if w is not None)
        raise UnsupportedInputError(
            f"[{op}] weights must have shape ({shape[1]},) to match x {tuple(shape)}; got {shapes}."
        )

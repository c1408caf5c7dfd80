"""Linear layers with weights packed at load: their definition and the checks all share.

``y[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]``, x (T, in_features) float32, y (T,
out_features) float32. ``weight`` is a stack of (out_i, in_features) matrices, held as ``dtype``
(rounded to nearest even where that is narrower); ``bias`` a stack of (out_i,), kept in float32.

A row of y depends on its row of x alone, bit for bit, whatever T and the number of threads.
CPU: native/cpu/linear.cpp. On AVX512_BF16 x is rounded to bfloat16 where the weights are bfloat16;
everywhere else the products are float32.

Quantized matrices (``kernels/matrices/quantized_tensor.py``) stay as they are. Each row of x is
rounded as their ``activations`` say (``kernels/matrices/activation_scheme.py``), else to 8 bits in
groups of 32 to 128 inputs (scale ``max|x| / 127``, to nearest even), unless ``exact_activations``:
then it is multiplied as it is. E4M3 codes in groups of 32 or more are multiplied as bfloat16
weights are, x treated as for those, and scaled afterwards. CPU: native/cpu/linear_quantized.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array, Weight
from quire.kernels.matrices.host_tensor import NUMPY_DTYPES, HostTensor


def held_dtype(weights: Sequence[Weight], dtype: str | None) -> str:
    """Return the type floats are held in: ``dtype``, or the one they are stored in when None."""
    stored = {weight.dtype for weight in weights if isinstance(weight, HostTensor)}
    return dtype or (stored.pop() if len(stored) == 1 else "float32")


def check_weights(
    weights: Sequence[Weight], biases: Sequence[HostTensor], dtype: str
) -> tuple[int, int]:
    """Return (in_features, out_features) of the stacked matrices.

    Raises:
        UnsupportedInputError: An unknown dtype, or shapes that do not stack.
    """
    if dtype not in NUMPY_DTYPES:
        known = ", ".join(NUMPY_DTYPES)
        raise UnsupportedInputError(f"[linear] dtype must be one of {known}; got {dtype}.")
    shapes = [weight.shape for weight in weights]
    if not shapes or any(
        len(shape) != 2 or shape[1] != shapes[0][1] or 0 in shape for shape in shapes
    ):
        raise UnsupportedInputError(
            f"[linear] weights must be matrices (out, in) of one in, none empty; got {shapes}."
        )
    in_features, out_features = shapes[0][1], sum(shape[0] for shape in shapes)
    bias_shapes = [bias.shape for bias in biases]
    if biases and (
        any(len(shape) != 1 for shape in bias_shapes)
        or sum(shape[0] for shape in bias_shapes) != out_features
    ):
        raise UnsupportedInputError(
            f"[linear] biases must stack to ({out_features},) to match the weights; "
            f"got {bias_shapes}."
        )
    return in_features, out_features


def check_input(x: Array, in_features: int) -> None:
    """Refuse activations that are not (T, in_features).

    Raises:
        UnsupportedInputError: Shapes disagree.
    """
    if len(x.shape) != 2 or x.shape[1] != in_features:
        raise UnsupportedInputError(
            f"[linear] x must have shape (T, {in_features}); got {tuple(x.shape)}."
        )

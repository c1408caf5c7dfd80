"""Elementwise activations, plain and gated: their definition and the checks.

``silu(x) = x / (1 + exp(-x))``; ``gelu(x) = x * (1 + erf(x / sqrt(2))) / 2``;
``gelu_tanh(x) = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x ** 3))) / 2``;
``quick_gelu(x) = x / (1 + exp(-1.702 x))``.
``clamped_swiglu(g, u) = g / (1 + exp(-1.702 g)) * (u + 1)``, g of at most 7, u of -7 to 7, only
gated.

``activation``: ``out = act(x)``, both (T, M) float32, ``out`` may be ``x``.
``gated_activation``: ``out = act(x[:, :M]) * x[:, M:]`` for x (T, 2 M) and out (T, M), or
``out = clamped_swiglu(x[:, :M], x[:, M:])``.

Source: Hendrycks and Gimpel 2016 (GELU); Shazeer 2020 (gated forms); OpenAI 2025 (gpt-oss).
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array

#: The order of Activation in native/include/types.h.
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "clamped_swiglu")
#: The factor of the sigmoid's argument in quick_gelu and clamped_swiglu, and this one's bound.
SIGMOID_FACTOR, SWIGLU_LIMIT = 1.702, 7.0


def check_name(activation: str, *, gated: bool) -> None:
    """Raise :class:`UnsupportedInputError` for an activation that there is none of."""
    known = ACTIVATIONS if gated else ACTIVATIONS[:-1]
    if activation not in known:
        raise UnsupportedInputError(
            f"[activation] must be one of {', '.join(known)}; got {activation!r}."
        )


def check(x: Array, activation: str, out: Array, *, gated: bool) -> None:
    """Refuse an unknown activation, or ``out`` that does not match ``x``.

    Raises:
        UnsupportedInputError: The activation is unknown, or ``out`` does not match.
    """
    check_name(activation, gated=gated)
    width = x.shape[-1]
    expected = (x.shape[0], width // 2 if gated else width)
    if len(x.shape) != 2 or tuple(out.shape) != expected or (gated and width % 2):
        raise UnsupportedInputError(
            f"[{'gated_' if gated else ''}activation] out must have shape {expected} to match x "
            f"{tuple(x.shape)}; got {tuple(out.shape)}."
        )

"""Mixture of experts: routing and the experts' MLPs, their definition and the checks.

``route``: ``p = softmax(logits[t, :])``; the ``top_k`` largest, equal ones to the lower expert,
best first; with ``renormalize`` their weights are divided by their sum.
``experts``: ``out[t] = sum_j weights[t, j] * down[e](act(gate_up[e](x[t])))``, ``e = ids[t, j]``,
summed in the order of ``j``, so a row's result does not depend on the other rows.

Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral).
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import UnsupportedInputError
from quire.kernels import activation
from quire.kernels.backend import Array, Linear


def check_route(logits: Array, top_k: int) -> None:
    """Refuse ``top_k`` outside 1..E.

    Raises:
        UnsupportedInputError: As said.
    """
    if len(logits.shape) != 2 or not 1 <= top_k <= logits.shape[1]:
        raise UnsupportedInputError(
            f"[route] top_k must be in 1..E for logits (T, E); got {top_k} for "
            f"{tuple(logits.shape)}."
        )


def check_experts(gate_up: Sequence[Linear], down: Sequence[Linear], activation_name: str) -> None:
    """Refuse experts whose shapes differ or do not chain.

    Raises:
        UnsupportedInputError: As said.
    """
    activation.check_name(activation_name)
    shapes = {
        (g.in_features, g.out_features, d.in_features, d.out_features)
        for g, d in zip(gate_up, down, strict=True)
    }
    chained = all(i == o and up == 2 * middle for i, up, middle, o in shapes)
    if len(shapes) != 1 or not chained:
        raise UnsupportedInputError(
            "[experts] every expert must map D to 2 M, and M to D; got (in, out, in, out) "
            f"{sorted(shapes)}."
        )


def check(x: Array, ids: Array, weights: Array, out: Array) -> None:
    """Refuse routes that are not (T, k) for x and out (T, D).

    Raises:
        UnsupportedInputError: As said. Expert ids are checked where they are used.
    """
    if x.shape != out.shape or ids.shape != weights.shape or ids.shape[0] != x.shape[0]:
        raise UnsupportedInputError(
            "[experts] x and out must be (T, D), ids and weights (T, k); got "
            f"{[tuple(a.shape) for a in (x, out, ids, weights)]}."
        )


def refuse_expert(num_experts: int) -> UnsupportedInputError:
    """Return the error for an expert id outside 0..E - 1."""
    return UnsupportedInputError(
        f"[experts] ids must be in [0, {num_experts}); got at least one outside."
    )

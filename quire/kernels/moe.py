"""Mixture of experts: routing and the experts' MLPs, their definition and the checks.

``route``: ``p = softmax(logits[t, :])`` or ``sigmoid(logits[t, :])``, and ``c = p + bias`` where
there is a bias, else ``p``. Of ``num_groups`` groups of E / num_groups neighbours those
``top_groups`` stay whose ``group_best`` largest ``c`` have the largest sum. Of their experts the
``top_k`` of the largest ``c`` are chosen, equal ones from the lower expert (or group), best first.
Their weights are their ``p``; with ``renormalize`` divided by their sum, or by 1e-20 if that is
larger; times ``scale``. A softmax that is renormalized is the softmax over the chosen alone, as
Mixtral and gpt-oss have it.

``experts``: ``out[t] = sum_j weights[t, j] * down[e](act(gate_up[e](x[t])))``, ``e = ids[t, j]``,
summed in the order of ``j``, so a row's result does not depend on the other rows.

``add_gated_rows``: ``out[t] += x[t] * sigmoid(gate[t])``, of experts that are always on.

``scale_rows``: ``out[t] = x[t] * scales[t]``, where weights count before experts (Llama 4).

Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); DeepSeek-AI 2024 (DeepSeek-V2, groups;
DeepSeek-V3, sigmoid and bias); Qwen2-MoE's gate.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import UnsupportedInputError
from quire.core.model.moe_config import ExpertRouting
from quire.kernels import activation
from quire.kernels.backend import Array, Linear

#: The order of RouteScores in native/include/types.h.
SCORES = ("softmax", "sigmoid")


def check_route(logits: Array, routing: ExpertRouting, bias: Array | None) -> None:
    """Refuse a routing that logits (T, E) cannot have.

    Raises:
        UnsupportedInputError: ``top_k`` is outside 1..E, or 1..the experts of the groups that stay;
            groups are not of one size or too small; the bias is not (E,).
    """
    num_experts = logits.shape[-1]
    if len(logits.shape) != 2 or not 1 <= routing.top_k <= num_experts:
        raise UnsupportedInputError(
            f"[route] top_k must be in 1..E for logits (T, E); got {routing.top_k} for "
            f"{tuple(logits.shape)}."
        )
    if routing.scores not in SCORES or (bias is not None and tuple(bias.shape) != (num_experts,)):
        raise UnsupportedInputError(
            f"[route] scores must be {' or '.join(SCORES)}, a bias ({num_experts},); got "
            f"{routing.scores} and {None if bias is None else tuple(bias.shape)}."
        )
    if problem := groups_problem(routing, num_experts):
        raise UnsupportedInputError(f"[route] {problem}")


def groups_problem(routing: ExpertRouting, num_experts: int) -> str | None:
    """Say which rule the groups of a routing break, and what they are; None where none."""
    groups, kept = routing.num_groups, routing.top_groups
    if groups < 1 or num_experts % groups or not 1 <= kept <= groups:
        return f"groups must divide {num_experts} experts, 1..all be kept; got {groups}, {kept}."
    size = num_experts // groups
    if not 1 <= routing.group_best <= min(2, size) or routing.top_k > kept * size:
        return (
            f"{kept} groups of {size} experts must hold top_k, and each 1..2 that count; got "
            f"top_k {routing.top_k}, {routing.group_best} that count."
        )
    return None


def check_experts(gate_up: Sequence[Linear], down: Sequence[Linear], activation_name: str) -> None:
    """Refuse experts whose shapes differ or do not chain.

    Raises:
        UnsupportedInputError: The experts' shapes differ or do not chain.
    """
    activation.check_name(activation_name, gated=True)
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
        UnsupportedInputError: The shapes do not match. Expert ids are checked where they are
            used.
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


def check_rows(op: str, x: Array, factors: Array, out: Array) -> None:
    """Refuse x and out that are not (T, D), or factors (a gate, scales) that are not (T, 1).

    Raises:
        UnsupportedInputError: The shapes do not match.
    """
    if len(x.shape) != 2 or x.shape != out.shape or tuple(factors.shape) != (x.shape[0], 1):
        raise UnsupportedInputError(
            f"[{op}] x and out must be (T, D), a factor of each row (T, 1); got "
            f"{[tuple(a.shape) for a in (x, out, factors)]}."
        )

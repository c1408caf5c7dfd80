"""Attention over a bfloat16 cache by dot products of pairs, operation by operation in numpy.

The order of native/cpu/attention_pairs.h: queries and softmax weights are rounded to bfloat16,
products are added pair by pair of elements and of absolute positions, 256 positions at a time.
Pieces are put together in float64, where the kernel has float32.
"""

from __future__ import annotations

import numpy as np

from tests.kernels.attention_cases import Case
from tests.kernels.bfloat16 import brain, flushed, fused

PIECE = 256
#: Coefficients of 2 ** f, that of f ** 4 first.
POWERS = np.float32([9.61812911e-3, 5.55041087e-2, 2.40226507e-1, 6.93147181e-1, 1.0])
#: Instruction sets whose attention over bfloat16 does this.
PAIR_ISAS = ("avx512bf16",)


def add_products(sums: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add (R, K) times (K, C) to (R, C) as VDPBF16PS does; K is even.

    Source: Intel's Software Developer's Manual, volume 2: of each pair the odd product is added
    first, each by a fused multiply-add.
    """
    for i in range(0, a.shape[1], 2):
        for k in (i + 1, i):
            sums = fused(a[:, k, None], b[k], sums)
    return sums


def paired(x: np.ndarray, axis: int) -> np.ndarray:
    """Append zeros to an odd axis."""
    return np.pad(x, [(0, x.shape[axis] % 2 if i == axis else 0) for i in range(x.ndim)])


def weight_of(x: np.ndarray) -> np.ndarray:
    """Return e ** x of float32 x <= 0 to 14 bits, rounded to bfloat16."""
    x = np.maximum(x * np.float32(1.44269504), np.float32(-150))
    power = np.rint(x)
    f = (x - power).astype(np.float64)
    p = np.full_like(x, POWERS[0])
    for coefficient in POWERS[1:]:
        p = (p * f + coefficient).astype(np.float32)
    return brain(flushed(np.ldexp(p, power.astype(int))))


def attend_head(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float
) -> np.ndarray:
    """Attend to one KV head.

    Args:
        q: (R, H) rows.
        k, v: (S, H), rounded to bfloat16.
        seen: (R, S) booleans.
        scale: Of the scores.

    Returns:
        (R, H) float64.
    """
    q = flushed(brain(q * np.float32(scale)))
    k, v = flushed(k), flushed(v)
    zeros = np.zeros((len(q), len(k)), np.float32)
    scores = add_products(zeros, paired(q, 1), paired(k.T, 0))
    scores = np.where(seen, scores, np.float32(-np.inf))
    parts = []
    for first in range(0, len(k), PIECE):
        piece = scores[:, first : first + PIECE]
        highest = piece.max(1, keepdims=True)
        weights = weight_of(piece - np.where(np.isinf(highest), np.float32(0), highest))
        sums = np.zeros_like(q)
        sums = add_products(sums, paired(weights, 1), paired(v[first : first + PIECE], 0))
        parts.append((highest.astype(np.float64), weights.sum(1, np.float64, keepdims=True), sums))
    top = np.max([highest for highest, _, _ in parts], axis=0)
    factors = [np.exp(highest - top) for highest, _, _ in parts]
    total = sum(f * total for f, (_, total, _) in zip(factors, parts, strict=True))
    sums = sum(f * sums for f, (_, _, sums) in zip(factors, parts, strict=True))
    return np.asarray(sums / total)


def simulate(case: Case, rows: np.ndarray) -> np.ndarray:
    """Attend from every token of one request to itself and those before it.

    Args:
        case: Without rotation.
        rows: (T, width) float32.

    Returns:
        (T, N H) float64.
    """
    heads = rows.reshape(len(rows), -1, case.head_dim)
    q, k, v = np.split(heads, [case.num_heads, case.num_heads + case.num_kv_heads], axis=1)
    distance = np.arange(len(rows))[:, None] - np.arange(len(rows))
    seen = (distance >= 0) & (distance < (case.window or len(rows)))
    group = case.num_heads // case.num_kv_heads
    out = np.empty(q.shape)
    for head in range(case.num_heads):
        keys, values = brain(k[:, head // group]), brain(v[:, head // group])
        out[:, head] = attend_head(q[:, head], keys, values, seen, case.spec.scale)
    return out.reshape(len(rows), -1)

"""Attention over a bfloat16 cache by dot products of pairs, operation by operation in numpy.

The order of native/cpu/attention_dots.h and attention_in_tiles.h: queries and softmax weights are
rounded to bfloat16, products are added pair by pair of elements and of absolute positions, 256
positions at a time. Pieces are put together in float64, where the kernel has float32.
"""

from __future__ import annotations

import numpy as np

from tests.kernels.attention_cases import Case
from tests.kernels.bfloat16 import brain, flushed, fused

PIECE = 256
#: Coefficients of 2 ** f, that of f ** 4 first.
POWERS = np.float32([9.61812911e-3, 5.55041087e-2, 2.40226507e-1, 6.93147181e-1, 1.0])
#: Instruction sets whose attention over bfloat16 does this.
PAIR_ISAS = ("avx512bf16", "amx", "amx_emulated")


def multiply(a: np.ndarray, b: np.ndarray, isa: str) -> np.ndarray:
    """Return (R, K) times (K, C) in the instruction set's order of sums.

    Source: Intel's Software Developer's Manual, volume 2. VDPBF16PS adds of each pair the odd
    product first, then the even one, each by a fused multiply-add. TDPBF16PS adds up the even and
    the odd products of 32 apart, from 0 on, then the odd sum to the even one, that to the sum.
    """
    step = 2 if isa == "avx512bf16" else 32
    inputs = -(-a.shape[1] // step) * step
    a = np.pad(a, ((0, 0), (0, inputs - a.shape[1])))
    b = np.pad(b, ((0, inputs - b.shape[0]), (0, 0)))
    sums = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, inputs, step):
        if step == 2:
            for k in (first + 1, first):
                sums = fused(a[:, k, None], b[k], sums)
            continue
        even, odd = np.zeros_like(sums), np.zeros_like(sums)
        for k in range(first, first + step, 2):
            even = fused(a[:, k, None], b[k], even)
            odd = fused(a[:, k + 1, None], b[k + 1], odd)
        sums = flushed(sums + flushed(even + odd))
    return sums


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
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, isa: str, sink: float | None
) -> np.ndarray:
    """Attend to one KV head.

    Args:
        q: (R, H) rows, times the scale.
        k, v: (S, H), rounded to bfloat16.
        seen: (R, S) booleans.
        isa: Of ``PAIR_ISAS``.
        sink: A score more in each row's total, or None.

    Returns:
        (R, H) float64.
    """
    q, k, v = flushed(brain(q)), flushed(k), flushed(v)
    scores = np.where(seen, multiply(q, k.T, isa), np.float32(-np.inf))
    parts = [] if sink is None else [(np.full((len(q), 1), sink), 1.0, 0.0)]
    for first in range(0, len(k), PIECE):
        piece = scores[:, first : first + PIECE]
        highest = piece.max(1, keepdims=True)
        weights = weight_of(piece - np.where(np.isinf(highest), np.float32(0), highest))
        sums = multiply(weights, v[first : first + PIECE], isa)
        parts.append((highest.astype(np.float64), weights.sum(1, np.float64, keepdims=True), sums))
    top = np.max([highest for highest, _, _ in parts], axis=0)
    factors = [np.exp(highest - top) for highest, _, _ in parts]
    total = sum(f * total for f, (_, total, _) in zip(factors, parts, strict=True))
    sums = sum(f * sums for f, (_, _, sums) in zip(factors, parts, strict=True))
    return np.asarray(sums / total)


def simulate(case: Case, rows: np.ndarray, isa: str, last: int | None = None) -> np.ndarray:
    """Attend from tokens of one request to themselves and those before them.

    Args:
        case: Without rotation and soft cap.
        rows: (T, width) float32.
        isa: Of ``PAIR_ISAS``.
        last: From that many tokens, the last ones; from all without it.

    Returns:
        (R, N H) float64.
    """
    heads = rows.reshape(len(rows), -1, case.head_dim)
    q, k, v = np.split(heads, [case.num_heads, case.num_heads + case.num_kv_heads], axis=1)
    distance = np.arange(len(rows))[:, None] - np.arange(len(rows))
    seen = (distance >= 0) & (distance < (case.window or len(rows)))
    if case.chunk:
        stretch = np.arange(len(rows)) // case.chunk
        seen &= stretch[:, None] == stretch
    if case.scaled:
        q = q * case.parameters()["query_scales"][: len(rows), None, None]
    group = case.num_heads // case.num_kv_heads
    sinks = case.parameters()["sinks"] if case.sinks else [None] * case.num_heads
    first = 0 if last is None else max(0, len(rows) - last)
    q, seen = q[first:], seen[first:]
    out = np.empty(q.shape)
    for head in range(case.num_heads):
        keys, values = brain(k[:, head // group]), brain(v[:, head // group])
        scaled = q[:, head] * np.float32(case.spec.scale)
        out[:, head] = attend_head(scaled, keys, values, seen, isa, sinks[head])
    return out.reshape(len(q), -1)

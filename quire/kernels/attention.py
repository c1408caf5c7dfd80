"""Rotate, store and attend through block tables: the definition and the checks.

T tokens, B requests, N query heads, K KV heads, H head dim.

For token ``t`` at position ``p`` of its request, for query head ``n`` and KV head
``k = n // (N / K)``:

1. with ``qk_norm``: q and k are normalised and scaled, each head or all heads of a token together
   (:class:`~quire.kernels.backend.QKNorm`);
2. with ``rope``: ``(x[i], x[i + R/2])`` turns by the angle of ``(p, i)``, for ``i < R/2``;
   elements from R (the rotary dim) on stay as they are; with ``rope_sections`` p is row s of
   ``positions`` for the pairs of section s, where there are several;
   then, with ``query_scales``, q is multiplied by the one of its position;
3. k and v are rounded to the cache's dtype and stored in slot ``slot_mapping[t]`` (-1: nowhere):
   ``fp8_e4m3`` to nearest even, saturating at 448, NaN kept; ``int8`` as
   ``round(x / scale)`` with ``scale = max|x| / 127`` of the head's H elements, rounded up to
   bfloat16 (NaN where one is not finite; codes are 0 where it is 0); ``int4`` in groups of 32
   elements of ``k R`` and of v, as ``round((x - minimum) / scale)``: the minimum is the lowest,
   rounded down to bfloat16, and ``scale = (highest - minimum) / 15``, rounded up (NaN and 0 as
   before); R has blocks of ``n x n``, a Hadamard matrix over ``sqrt(n)``, n the largest power of
   two that divides H;
4. ``out = sum_j softmax_j(s_j) v_j``, ``s_j = scale * q . k_j``, over cached positions ``j`` in
   ``max(0, p - window + 1) .. max(p + ahead, last_seen)``, with a ``chunk`` from
   ``p // chunk * chunk`` on, K and V read back from the cache, in float32; of ``int4`` K is turned
   back, or q is turned, which is the same product: R is symmetric and its own inverse. With
   ``score_cap`` ``s_j`` becomes ``cap * tanh(s_j / cap)``; with ``sinks`` the softmax's total has
   ``exp(sinks[n])`` in it, too.

Of a request with a tree of tokens, those rows that have a path (``tree_slots``) see the tokens of
the path from position ``tree_start`` on, and ``p`` is the position of its last one, their own.

``p = seq_len - query_len + i`` for the i-th query of its request; ``positions`` holds the
same, or its sections, and is what step 2 uses. Slots that were never written are never read.

Source: Vaswani et al. 2017; Su et al. 2021 (RoPE); Kwon et al. 2023 (paged attention); Milakov and
Gimelshein 2018 (online softmax); Ashkboos et al. 2024 (QuaRot: keys rotated after RoPE); Gemma 2
(2024, soft caps); Xiao et al. 2023 (sinks); Llama 4 (2025, chunks, scaled queries).
"""

from __future__ import annotations

import math

from quire.core.errors import UnsupportedInputError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import Array, AttentionSpec, QKNorm
from quire.kernels.batch.forward_batch import ForwardBatch

#: Kinds of :class:`~quire.kernels.backend.QKNorm`, in the order of native/include/attention.h.
QK_NORMS = ("rms_of_heads", "rms_of_rows", "layer_of_heads")


def check_spec(
    spec: AttentionSpec,
    rope: tuple[Array, Array] | None,
    qk_norm: QKNorm | None,
    sinks: Array | None,
    query_scales: Array | None,
) -> None:
    """Refuse a layer whose shapes do not fit together.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    if spec.num_kv_heads < 1 or spec.num_heads % spec.num_kv_heads:
        raise UnsupportedInputError(
            f"[attention] num_heads must be a multiple of num_kv_heads; got {spec.num_heads} "
            f"and {spec.num_kv_heads}."
        )
    if spec.sliding_window is not None and spec.sliding_window < 1:
        raise UnsupportedInputError(
            f"[attention] sliding_window must be at least 1; got {spec.sliding_window}."
        )
    if spec.chunk is not None and spec.chunk < 1:
        raise UnsupportedInputError(f"[attention] chunk must be at least 1; got {spec.chunk}.")
    if spec.ahead is not None and spec.ahead < 0:
        raise UnsupportedInputError(
            f"[attention] ahead must be at least 0, or None for all; got {spec.ahead}."
        )
    if spec.score_cap is not None and not 0 < spec.score_cap < math.inf:
        raise UnsupportedInputError(
            f"[attention] score_cap must be a finite number > 0; got {spec.score_cap}."
        )
    if sinks is not None and tuple(sinks.shape) != (spec.num_heads,):
        raise UnsupportedInputError(
            f"[attention] sinks must have shape ({spec.num_heads},); got {tuple(sinks.shape)}."
        )
    if qk_norm is not None:
        _check_norm(spec, qk_norm)
    if rope is not None:
        shapes = [tuple(table.shape) for table in rope]
        if shapes[0] != shapes[1] or not 0 < 2 * shapes[0][1] <= spec.head_dim:
            raise UnsupportedInputError(
                f"[attention] rope tables must both be (positions, <= {spec.head_dim // 2}); "
                f"got {shapes}."
            )
    if query_scales is not None and rope is not None and len(query_scales) != len(rope[0]):
        raise UnsupportedInputError(
            f"[attention] query_scales must be for the {len(rope[0])} positions of rope; got "
            f"{len(query_scales)}."
        )
    half = rope[0].shape[1] if rope else 0
    if spec.rope_sections and (sum(spec.rope_sections) != half or min(spec.rope_sections) < 0):
        raise UnsupportedInputError(
            f"[attention] rope_sections must sum to the {half} rotary pairs; got "
            f"{spec.rope_sections}."
        )


def _check_norm(spec: AttentionSpec, norm: QKNorm) -> None:
    if norm.kind not in QK_NORMS:
        raise UnsupportedInputError(
            f"[attention] qk_norm must be one of {', '.join(QK_NORMS)}; got {norm.kind!r}."
        )
    heads, size = (spec.num_heads, spec.num_kv_heads), spec.head_dim
    wanted = {
        "rms_of_heads": [(size,) for _ in heads],
        "rms_of_rows": [(n * size,) for n in heads],
        "layer_of_heads": [(n, size) for n in heads],
    }[norm.kind]
    got = [tuple(weights.shape) for weights in (norm.queries, norm.keys)]
    if got != wanted:
        raise UnsupportedInputError(
            f"[attention] weights of qk_norm {norm.kind} must be {wanted}; got {got}."
        )


def check_cache(spec: AttentionSpec, cache: KVCacheSpec) -> None:
    """Refuse a cache that was made for another model.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    wanted = (spec.num_kv_heads, spec.head_dim, False)
    got = (cache.num_kv_heads, cache.head_dim, cache.is_latent)
    if got != wanted or not 0 <= spec.layer < cache.num_layers:
        raise UnsupportedInputError(
            f"[attention] layer {spec.layer} needs a cache of (KV heads, head dim, latent) "
            f"{wanted}; got {got} with {cache.num_layers} layers."
        )


def check_batch(spec: AttentionSpec, batch: ForwardBatch) -> None:
    """Refuse a step whose arrays do not fit together, or do not have the spec's sections.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    num_tokens, requests = batch.slot_mapping.shape[0], batch.seq_lens.shape[0]
    wanted: list[tuple[int, ...]] = [(num_tokens,)]
    if spec.rope_sections:
        wanted.append((len(spec.rope_sections), num_tokens))
    positions = tuple(batch.positions.shape)
    starts = (batch.query_start_loc.shape[0], batch.block_tables.shape[0])
    if positions not in wanted or starts != (requests + 1, requests):
        raise UnsupportedInputError(
            f"[attention] batch must have positions {wanted[-1]} and describe {requests} requests; "
            f"got {positions}, and {starts} query starts and block tables."
        )
    if spec.ahead != 0:
        queries = batch.query_start_loc[1:] - batch.query_start_loc[:-1]
        if (queries != batch.seq_lens).any() or batch.tree_starts is not None:
            raise UnsupportedInputError(
                "[attention] a layer that sees positions ahead needs whole requests and no trees; "
                f"got {queries.tolist()} queries of {batch.seq_lens.tolist()} tokens."
            )


def check(spec: AttentionSpec, qkv: Array, num_tokens: int, out: Array) -> None:
    """Refuse rows that do not match the spec and the step.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    heads = spec.num_heads + 2 * spec.num_kv_heads
    wanted = (num_tokens, heads * spec.head_dim), (num_tokens, spec.num_heads * spec.head_dim)
    if (qkv.shape, out.shape) != wanted:
        raise UnsupportedInputError(
            f"[attention] qkv and out must be {wanted[0]} and {wanted[1]} for a step of "
            f"{num_tokens} tokens; got {tuple(qkv.shape)} and {tuple(out.shape)}."
        )


def refuse_batch() -> UnsupportedInputError:
    """Return the error for a step whose block tables, slots or lengths point outside the cache."""
    return UnsupportedInputError(
        "[attention] slots, block ids and positions must lie inside the cache and the rope tables; "
        "query_start_loc must rise from 0 to T with query lengths <= seq_lens, and last_seen must "
        "not fall within a request."
    )

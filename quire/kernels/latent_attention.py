"""Multi-head latent attention through block tables: the definition and the checks.

T tokens, N query heads, r elements of a latent, R elements of a key that turn.

For token ``t`` at position ``p`` of its request with latent ``c`` (r,) and key part ``k`` (R,):

1. ``c`` becomes its RMSNorm, ``k`` and the last R elements of each query turn by the angles of
   ``p`` in pairs ``(x[i], x[i + R/2])``;
2. ``[c, k]``, rounded to the cache's dtype as a key is (``kernels/attention.py``), is stored in
   slot ``slot_mapping[t]`` (-1: nowhere): the only row that the cache has of the token;
3. of head n, with ``[U_n; W_n]`` its rows of ``heads``, ``out_n = sum_j softmax_j(s_j) W_n c_j``
   with ``s_j = scale * (q_n . U_n c_j + r_n . k_j)`` for a query ``[q_n, r_n]``, over the cached
   positions ``j`` up to ``p``, or the tokens of a tree's path, in float32.

``q . U c`` is ``(U^T q) . c`` and ``sum_j w_j W c_j`` is ``W sum_j w_j c_j``: a backend may
multiply queries and sums instead of latents (absorbed). All heads then read one row of a position.

Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1. CPU: native/runtime/latent_attention.cpp.
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.attention_protocol import LatentSpec, LatentWeights
from quire.kernels.batch.forward_batch import Array


def check_spec(spec: LatentSpec, weights: LatentWeights, rope: tuple[Array, Array]) -> None:
    """Refuse a layer whose shapes do not fit together.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    wanted = (spec.num_heads * (spec.key_dim + spec.value_dim), spec.rank)
    got = tuple(weights.heads.shape), tuple(weights.norm.shape)
    if got != (wanted, (spec.rank,)):
        raise UnsupportedInputError(
            f"[latent_attention] weights of heads and norm must be {wanted} and ({spec.rank},); "
            f"got {got[0]} and {got[1]}."
        )
    shapes = [tuple(table.shape) for table in rope]
    if shapes[0] != shapes[1] or 2 * shapes[0][1] != spec.rope_dim:
        raise UnsupportedInputError(
            f"[latent_attention] rope tables must both be (positions, {spec.rope_dim // 2}); got "
            f"{shapes}."
        )


def check_cache(spec: LatentSpec, cache: KVCacheSpec) -> None:
    """Refuse a cache that was made for another model.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    wanted, got = (1, spec.row_dim, True), (cache.num_kv_heads, cache.head_dim, cache.is_latent)
    if got != wanted or not 0 <= spec.layer < cache.num_layers:
        raise UnsupportedInputError(
            f"[latent_attention] layer {spec.layer} needs a cache of (heads, elements, latent) "
            f"{wanted}; got {got} with {cache.num_layers} layers."
        )


def check(spec: LatentSpec, queries: Array, latents: Array, num_tokens: int, out: Array) -> None:
    """Refuse rows that do not match the spec and the step.

    Raises:
        UnsupportedInputError: The parts do not fit; the message says which rule is broken.
    """
    widths = spec.query_width, spec.row_dim, spec.num_heads * spec.value_dim
    wanted = [(num_tokens, width) for width in widths]
    got = [tuple(array.shape) for array in (queries, latents, out)]
    if got != wanted:
        raise UnsupportedInputError(
            f"[latent_attention] queries, latents and out must be {wanted} for a step of "
            f"{num_tokens} tokens; got {got}."
        )

"""Choosing tokens from logits: the definition, the random numbers and the checks.

For a row ``l`` of V logits, in this order (vLLM's):

1. ``mask`` and ``allowed``: when given, every other token becomes -inf; ``bias`` is added.
2. ``repetition_penalty`` r, once for each token of the history (prompt and output):
   ``l = l / r if l > 0 else l * r``.
3. ``l -= frequency_penalty * count + presence_penalty * (count > 0)``, count over the output.
4. Temperature 0: the largest logit, equal ones to the lowest id. Otherwise
   ``x = (l - max l) / temperature`` and weights ``w = exp(x)``.
5. ``min_p``: keep ``w >= min_p``. ``top_k``: of those, the first k in the order (l falling, id
   rising). ``top_p``: of those, the shortest prefix in that order whose weight reaches ``top_p`` of
   the weight of all kept so far. The best token always stays.
6. The token is the kept one with the largest ``x - log E``, equal ones to the lowest id. E is the
   token's exponential number at this seed and position: ``E / w`` is smallest for a token with
   probability w / sum(w), an exponential race (or Gumbel-max, with -log E).

E belongs to (seed, position, token) and not to what else is kept, so two models that draw at one
seed and position agree often where their distributions are alike: in at least (1 - d) / (1 + d) of
all draws, d the total variation (Daliri, Musco and Suresh 2025). A number of 52 bits decides it,
``E = -log(1 - (bits + 1/2) / 2 ** 52)``. Small E, which only rare tokens need, are coarser: a token
of probability p is drawn with p (1 - (2 ** -52 / p) ** 2 / 24), so exact down to 1e-14, and never
much below 1e-17. x and E are float64; the weights that min_p, top_k and top_p compare may be
float32.

A row with a NaN, with +inf, or with nothing but -inf has no such token: the result is -1.
A draw depends on the row's logits, settings, seed and position, and on nothing else.

``sampling_probabilities`` are the weights of the kept tokens over their sum, and 0 for all others.

``token_logprobs`` works on raw logits: ``logprob = l - log(sum(exp(l)))``; the rank of a token is 1
plus the number of tokens before it in the order (l falling, id rising).
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array
from quire.kernels.batch.sampling_batch import SamplingBatch

_G = 0x9E3779B97F4A7C15  # 2 ** 64 / golden ratio
_ONE_EACH = (
    "temperature", "top_p", "min_p", "top_k", "seed", "position", "num_prompt_tokens",
    "mask_rows", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_OFFSETS = ("history_offsets", "bias_offsets", "allowed_offsets")
_MASK_64, _MASK_32 = (1 << 64) - 1, (1 << 32) - 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)


def draw_keys(seed: int, position: int) -> tuple[int, int, int, int]:
    """Return the four words of 32 bits that the numbers of all tokens are made from.

    ``k = mix(mix(seed + g) + (position + 1) g)`` and ``mix(k + g)``, lower half first, with the
    finaliser of SplitMix64: a counter, so no state has to follow a request around.

    Source: Steele, Lea and Flood 2014.
    """
    first = _mix((_mix((seed + _G) & _MASK_64) + (position + 1) * _G) & _MASK_64)
    second = _mix((first + _G) & _MASK_64)
    return first & _MASK_32, first >> 32, second & _MASK_32, second >> 32


def draw_bits(keys: tuple[int, int, int, int], token_ids: Array) -> Array:
    """Return the 52 bits of each token's number: a word from each pair of keys, the upper first.

    Args:
        token_ids: Integers of 64 bits, of any shape.

    Source: of the function of a word, Wellons 2018 (lowbias32), with a key before each product.
    """
    upper, lower = (_word(token_ids, *pair) for pair in (keys[:2], keys[2:]))
    return (upper << 20) | (lower >> 12)


def _word(ids: Array, first: int, second: int) -> Array:
    z = (ids + first) & _MASK_32
    z = ((z ^ (z >> 16)) * 0x7FEB352D) & _MASK_32
    z = z ^ second
    z = ((z ^ (z >> 15)) * 0x846CA68B) & _MASK_32
    return z ^ (z >> 16)


def check(logits: Array, batch: SamplingBatch) -> None:
    """Refuse settings that are not one per row.

    Raises:
        UnsupportedInputError: A shape does not match. Ids outside the vocabulary are refused where
            they are used.
    """
    rows = logits.shape[0] if len(logits.shape) == 2 else -1
    for names, length in ((_ONE_EACH, rows), (_OFFSETS, rows + 1)):
        for name in names:
            if getattr(batch, name).shape != (length,):
                raise UnsupportedInputError(
                    f"[sample] {name} must have shape ({length},) to match logits "
                    f"{tuple(logits.shape)}; got {tuple(getattr(batch, name).shape)}."
                )
    words = -(-logits.shape[1] // 32)
    masks = tuple(batch.mask_words.shape)
    if len(masks) != 2 or (masks[0] and masks[1] != words):
        raise UnsupportedInputError(
            f"[sample] mask_words must have {words} words per row to match logits "
            f"{tuple(logits.shape)}; got {masks}."
        )


def refuse_batch() -> UnsupportedInputError:
    """Return the error for ids outside the vocabulary or offsets that do not rise."""
    return UnsupportedInputError(
        "[sample] ids must lie inside the vocabulary, offsets rise from 0 to the length of their "
        "array, and mask_rows name rows of mask_words."
    )


def check_logprobs(logits: Array, token_ids: Array, num_top: int) -> None:
    """Refuse shapes that disagree, or more alternatives than there are tokens.

    Raises:
        UnsupportedInputError: The shapes disagree, or ``num_top`` is too large.
    """
    if len(logits.shape) != 2 or tuple(token_ids.shape) != (logits.shape[0],):
        raise UnsupportedInputError(
            f"[token_logprobs] token_ids must have one id per row of logits "
            f"{tuple(logits.shape)}; got {tuple(token_ids.shape)}."
        )
    if not 0 <= num_top <= logits.shape[1]:
        raise UnsupportedInputError(
            f"[token_logprobs] num_top must be in 0..{logits.shape[1]}; got {num_top}."
        )

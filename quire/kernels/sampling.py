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
6. The token is the first id, ids rising, at which the running weight of kept tokens exceeds
   ``uniform(seed, position)`` times their total.

A row with a NaN, with +inf, or with nothing but -inf has no such token: the result is -1.
A draw depends on the row's logits, settings, seed and position, and on nothing else.

``token_logprobs`` works on raw logits: ``logprob = l - log(sum(exp(l)))``; the rank of a token is 1
plus the number of tokens before it in the order (l falling, id rising).
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array, SamplingBatch

_MASK = (1 << 64) - 1


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that decides the draw at ``position`` of a sequence.

    ``mix(mix(seed + g) + (position + 1) g)``, its top 53 bits, with the finaliser of SplitMix64 and
    g = 2 ** 64 / golden ratio: a counter, so no state has to follow a request around.

    Source: Steele, Lea and Flood 2014.
    """
    g = 0x9E3779B97F4A7C15
    z = _mix((_mix((seed + g) & _MASK) + (position + 1) * g) & _MASK)
    return float(z >> 11) * 2.0**-53


def check(logits: Array, batch: SamplingBatch) -> None:
    """Refuse settings that are not one per row.

    Raises:
        UnsupportedInputError: As said. Ids outside the vocabulary are refused where they are used.
    """
    rows = logits.shape[0] if len(logits.shape) == 2 else -1
    one_each = (
        "temperature", "top_p", "min_p", "top_k", "seed", "position", "num_prompt_tokens",
        "mask_rows",
    )  # fmt: skip
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    offsets = ("history_offsets", "bias_offsets", "allowed_offsets")
    for names, length in (((*one_each, *penalties), rows), (offsets, rows + 1)):
        for name in names:
            shape = tuple(getattr(batch, name).shape)
            if shape != (length,):
                raise UnsupportedInputError(
                    f"[sample] {name} must have shape ({length},) to match logits "
                    f"{tuple(logits.shape)}; got {shape}."
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
        UnsupportedInputError: As said.
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

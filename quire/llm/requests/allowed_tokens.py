"""The tokens that a request's settings leave; settings that leave none are refused at once.

Tokens that a grammar or longer bad words forbid besides are found where tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import InvalidSamplingParamsError
from quire.core.sampling_params import SamplingParams

#: A bias that forbids, as in OpenAI's API.
FORBIDDING_BIAS = -100.0


def first_tokens(params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int) -> bytes:
    """Return the tokens that settings leave for the beginning of what a grammar describes.

    Args:
        params: A request's settings, with the ids of its bad words.
        eos_token_ids: Ids that end a sequence.
        vocab_size: Size of the vocabulary; token ids are below it.

    Returns:
        A bit per id, the lowest first; nothing where all are left, or without a grammar.

    Raises:
        InvalidSamplingParamsError: No token is left; ``param`` is one of the settings.
    """
    allowed = params.allowed_token_ids
    forbidden = {ids[0] for ids in params.bad_words_token_ids if len(ids) == 1}
    biases = params.logit_bias or {}
    forbidden.update(token_id for token_id, bias in biases.items() if bias <= FORBIDDING_BIAS)
    if params.min_tokens:
        forbidden.update(params.stop_token_ids or ())
        forbidden.update(() if params.ignore_eos else eos_token_ids)
    num_left = vocab_size - len(forbidden) if allowed is None else len(set(allowed) - forbidden)
    if num_left <= 0:
        _refuse(params)
    if (allowed is None and not forbidden) or params.structured_outputs is None:
        return b""
    bits = bytearray((b"\xff" if allowed is None else b"\0") * ((vocab_size + 7) // 8))
    for token_id in allowed or ():
        bits[token_id >> 3] |= 1 << (token_id & 7)
    for token_id in forbidden:
        bits[token_id >> 3] &= ~(1 << (token_id & 7))
    return bytes(bits)


def _refuse(params: SamplingParams) -> None:
    names = ("allowed_token_ids", "bad_words", "logit_bias", "min_tokens", "bad_words_token_ids")
    given = [name for name in names if getattr(params, name)]
    raise InvalidSamplingParamsError(
        f"[{given[0]}] a token must be left to generate; got {', '.join(given)}, which forbid all "
        "of them together. Leave one out.",
        given[0],
    )

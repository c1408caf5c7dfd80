"""Follows a grammar for some tokens, to see what it would cost a request; it compiles nothing.

llguidance's limits bound the cost of a mask, but not tightly, and some grammars reach them only
after a few tokens. Either would show while other requests wait for their tokens.
"""

from __future__ import annotations

import time
from random import Random

from llguidance import LLMatcher

from quire.core.errors import RequestError
from quire.text.grammars.grammar import check_beginning, check_limits, check_writable, first_mask
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary

#: Text that may be left no choice about at a time: it is worked through before the next token.
MAX_FORCED_BYTES = 16384
#: Computing time that a mask may take, in seconds; most take a thousandth of it.
MASK_SECONDS = 0.1
#: Outputs that are tried, and the tokens of each.
NUM_WALKS = 3
NUM_TOKENS = 48
#: After this much computing time nothing more is tried.
TRIAL_SECONDS = 0.5


def try_out(
    start: LLMatcher, kind: str, vocabulary: GrammarVocabulary, possible: bytes = b""
) -> None:
    """Follow random outputs from the start, in this thread.

    Args:
        start: A matcher at the start of the output.
        kind: The request's field, for messages.
        vocabulary: The vocabulary that it was compiled for.
        possible: Tokens that the request leaves for the beginning, a bit per id; nothing for all.

    Raises:
        RequestError: No token can begin or continue, a mask takes too long, or a limit is reached.
    """
    began = time.thread_time()
    unwritable_id = vocabulary.unwritable_id
    check_beginning(first_mask(start, kind, unwritable_id), kind, possible)
    _check_cost(start, kind, began, 0)
    ends = sum(1 << token_id for token_id in vocabulary.eos_token_ids)
    for seed in range(NUM_WALKS):
        random, matcher = Random(seed), start.deep_copy()
        for num_tokens in range(NUM_TOKENS):
            before = time.thread_time()
            mask = int.from_bytes(matcher.compute_bitmask(), "little") & ~ends
            check_limits(matcher, kind)
            _check_cost(matcher, kind, before, num_tokens)
            check_writable(mask, kind, unwritable_id)
            if not mask or before - began > TRIAL_SECONDS:
                break
            matcher.try_consume_tokens([_draw(mask, random)])
            check_limits(matcher, kind)


def _check_cost(matcher: LLMatcher, kind: str, before: float, num_tokens: int) -> None:
    """Refuse what the last mask has cost; ``before`` is the thread's time before it."""
    seconds = time.thread_time() - before
    num_forced = len(matcher.compute_ff_bytes())
    if num_forced > MAX_FORCED_BYTES:
        rule = f"leave no more than {MAX_FORCED_BYTES} bytes at a time without choice"
        got = f"{num_forced} at token {num_tokens + 1}"
    elif seconds > MASK_SECONDS:
        rule = f"need at most {MASK_SECONDS:g} s of computing for a token"
        got = f"{seconds:.2g} s for token {num_tokens + 1}"
    else:
        return
    raise RequestError(
        f"[structured_outputs] {kind} must {rule}; got {got}. Shorten its repetitions and "
        "constants.",
        "structured_outputs",
    )


def _draw(mask: int, random: Random) -> int:
    """Return one of the ids whose bits are set."""
    shift = random.randrange(mask.bit_length())
    mask = (mask >> shift) << shift
    return (mask & -mask).bit_length() - 1

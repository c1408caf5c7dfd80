"""Tokens that follow without the model: where a grammar allows one token, that token comes next.

It never chooses between tokens: where two spell the same text, the model is asked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.runner.token_rules import TokenRules
from quire.runner.token_table import IntArray, TokenTable

#: Most that follow one drawn token; the step after it goes on, so this changes no output.
MAX_FORCED_TOKENS = 32


def only_token(mask: bytes) -> int | None:
    """Return the one token that ``mask`` (a bit per id, lowest first) allows; None if not one."""
    words = np.frombuffer(mask, np.uint32)
    if np.count_nonzero(words) != 1:
        return None
    at = int(words.argmax())
    word = int(words[at])
    return None if word & (word - 1) else 32 * at + word.bit_length() - 1


def append_forced_tokens(table: TokenTable, row: int, rules: TokenRules) -> list[int]:
    """Append to ``row`` what its grammar leaves no choice about; return the tokens.

    It ends after a token that ends the sequence, and before one that other settings forbid: that
    is for the sampler to find. Whether the sequence has room is for the scheduler, which drops what
    comes after its end.

    Args:
        table: The row's last token was drawn in this step.
        row: Of the table.
        rules: Of the row, with a matcher.
    """
    matcher = rules.matcher
    assert matcher is not None, f"row {row} has no grammar"
    at: IntArray = np.array([row], np.int32)
    start = int(table.num_prompt_tokens[row])
    forced: list[int] = []
    last = int(table.tokens(row)[-1])
    while len(forced) < MAX_FORCED_TOKENS and last not in rules.stop_ids:
        output_ids = table.tokens(row)[start:]
        token = only_token(matcher.allowed(output_ids[matcher.num_taken :].tolist()))
        if token is None or not _permitted(rules, output_ids, token):
            break
        table.append_tokens(at, np.array([token], np.int32))
        forced.append(token)
        last = token
    return forced


def _permitted(rules: TokenRules, output_ids: IntArray, token: int) -> bool:
    """Return whether everything but the grammar allows ``token`` after ``output_ids``."""
    ids, values = rules.bias(output_ids)
    biases: npt.NDArray[np.float32] = values[ids == token]
    if np.isneginf(biases).any():
        return False
    return not rules.allowed_ids.size or token in rules.allowed_ids

"""Rules of one row's next token from its settings; plain numbers are kept elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs, TokenMatcher
from quire.core.token_words import TokenWords
from quire.kernels.batch.token_table import IntArray
from quire.runner.step.bad_words import BadWords

FloatArray = npt.NDArray[np.float32]

NO_IDS: IntArray = np.empty(0, np.int32)
#: Number of tokens that no row reaches.
MAX_TOKENS = 2**31 - 1


@dataclass(slots=True)
class TokenRules:
    """Settings of a row other than plain numbers; most rows have none.

    Attributes:
        num_penalized: Last tokens of the row that penalties look at; 0 without penalties.
        bias_ids, bias_values: Constant bias; -inf forbids.
        allowed_ids: The only ids permitted, or empty.
        min_tokens: Outputs before which ``stop_ids`` are forbidden.
        stop_ids: End-of-sequence and stop ids.
        bad_words: Bad words of at least two tokens, with the state of the row's output; None for
            none.
        matcher: Matcher that follows the output through its grammar; None without one.
        constraint: Constraint that the matcher was created from.
        is_slow: Whether the matcher has taken long.
        has_looked_ahead: Whether the matcher has followed tokens that were only proposed.
        known: Number of output tokens, and the mask of those that may come after them, a bit per
            id; None where the matcher has to be asked.
    """

    num_penalized: int
    bias_ids: IntArray
    bias_values: FloatArray
    allowed_ids: IntArray
    min_tokens: int
    stop_ids: IntArray
    bad_words: BadWords | None
    matcher: TokenMatcher | None
    constraint: StructuredOutputs | None = None
    is_slow: bool = False
    has_looked_ahead: bool = False
    known: tuple[int, bytes] | None = None

    @classmethod
    def from_params(
        cls, params: SamplingParams, eos_token_ids: Sequence[int], matcher: TokenMatcher | None
    ) -> TokenRules | None:
        """Create the rules of ``params``; None where plain numbers are all of them."""
        bias = dict(params.logit_bias or {})
        single, bad_words = BadWords.read(TokenWords.of(params.bad_words_token_ids))
        bias.update(dict.fromkeys(single, -np.inf))
        eos = () if params.ignore_eos else tuple(eos_token_ids)
        penalized = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        window = MAX_TOKENS if params.repeat_last_n < 0 else params.repeat_last_n
        rules = cls(
            num_penalized=window if penalized else 0,
            bias_ids=np.array(list(bias), np.int32),
            bias_values=np.array(list(bias.values()), np.float32),
            allowed_ids=np.unique(np.array(params.allowed_token_ids or (), np.int32)),
            min_tokens=params.min_tokens,
            stop_ids=np.unique(np.array(eos + tuple(params.stop_token_ids or ()), np.int32)),
            bad_words=bad_words,
            matcher=matcher,
            constraint=params.structured_outputs,
        )
        plain = not (
            rules.num_penalized
            or rules.bias_ids.size
            or rules.allowed_ids.size
            or rules.min_tokens
            or rules.bad_words is not None
            or matcher is not None
        )
        return None if plain else rules

    def for_row(self, matcher: TokenMatcher | None) -> TokenRules:
        """Return the same rules for another row, whose output ``matcher`` follows."""
        return replace(
            self,
            bad_words=None if self.bad_words is None else self.bad_words.for_row(),
            matcher=matcher,
            is_slow=False,
            has_looked_ahead=False,
            known=None,
        )

    def bias(self, num_output: int, forbidden: IntArray) -> tuple[IntArray, FloatArray]:
        """Return ids and values to add to the logits of a token.

        Args:
            num_output: Number of output tokens before it.
            forbidden: Ids that bad words forbid.
        """
        if num_output < self.min_tokens:
            forbidden = np.concatenate([forbidden, self.stop_ids])
        if not len(forbidden):
            return self.bias_ids, self.bias_values
        infinite = np.full(len(forbidden), -np.inf, np.float32)
        return (
            np.concatenate([self.bias_ids, forbidden]),
            np.concatenate([self.bias_values, infinite]),
        )

    def leave_a_token(self, output_ids: IntArray) -> bool:
        """Return whether any token may follow ``output_ids``."""
        left = self.allowed_ids
        if self.known is not None and self.known[0] == len(output_ids):
            bits = np.unpackbits(np.frombuffer(self.known[1], np.uint8), bitorder="little")
            named = np.flatnonzero(bits).astype(np.int32)
            left = np.intersect1d(left, named) if left.size else named
        elif not left.size:
            return True  # no other rule covers all tokens
        words = self.bad_words
        forbidden = NO_IDS if words is None else words.for_row().forbidden(output_ids)
        ids, values = self.bias(len(output_ids), forbidden)
        return bool(np.setdiff1d(left, ids[np.isneginf(values)]).size)

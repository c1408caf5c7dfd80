"""Grammars that follow drawn tokens: the tokens that may come next, and those that must.

Tokens that must come are taken without the model. It never chooses between tokens: where two
spell the same text, the model is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quire.core.structured_outputs import TokenMatcher, grammar_limit, library_failure
from quire.kernels.batch.token_table import IntArray
from quire.runner.step.token_rules import NO_IDS, TokenRules

#: Forced tokens after one drawn token, at most; the next step continues, so no output changes.
MAX_FORCED_TOKENS = 32
#: Computing time that a token's mask may take, in seconds; its request fails beyond it.
MAX_MASK_SECONDS = 1.0


class GrammarAdvance:
    """One row's grammar following its output to the next draw; :meth:`run` is for another thread.

    Args:
        rules: The row's rules with a matcher, which no other thread uses until :attr:`finished` is
            set. Neither is written to.
        output_ids: All of the row's output; the array is kept.
        jumps: Whether tokens that the grammar leaves no choice about are taken without the model.
        create_matcher: Call that creates another matcher, at the start of the output, where this
            one fails; None where the failure counts.

    Attributes:
        finished: Event that is set when the next mask is known.
        known: Number of output tokens, and the mask of those that may come after them, a bit per
            id; None where the matcher has to be asked.
        matcher: The matcher to use from then on.
        mask_seconds: Computing time of the slowest mask; divided by the number of tokens where
            several were followed up to it.
    """

    def __init__(
        self,
        rules: TokenRules,
        output_ids: IntArray,
        jumps: bool,
        create_matcher: Callable[[], TokenMatcher] | None = None,
    ) -> None:
        assert rules.matcher is not None, "no grammar"
        self._rules = rules
        self.matcher = rules.matcher
        self._create_matcher = create_matcher
        self._output_ids = output_ids
        self._jumps = jumps
        self._forced: list[int] = []
        self._lock = threading.Lock()  # of the tokens forced and whether there may be more
        self.finished = threading.Event()
        self.known: tuple[int, bytes] | None = None
        self.mask_seconds = 0.0

    def run(self) -> None:
        """Follow the output and forced tokens, up to a token that ends the sequence."""
        try:
            while self._output_ids[-1] not in self._rules.stop_ids:
                mask = self._mask()
                if self._create_matcher is not None and self.matcher.error:
                    # The matcher may have spent its limit on proposed tokens.
                    self.matcher, self._create_matcher = self._create_matcher(), None
                    mask = self._mask()
                self.known = len(self._output_ids), mask
                token = only_token(mask) if self._jumps else None
                if token is None or not self._take(token):
                    break
            if self.mask_seconds > MAX_MASK_SECONDS:
                self.known = None
                rule = f"need at most {MAX_MASK_SECONDS:g} s of computing for a token"
                got = f"{self.mask_seconds:.1f} s"
                self.matcher.fail(grammar_limit(f"{rule}; got {got}. Simplify it."))
        except BaseException as error:  # Rust libraries raise panics as such
            self.known = None
            self.matcher.fail(library_failure(error))
        finally:
            self.finished.set()

    def stop_forcing(self) -> list[int]:
        """Return the forced tokens, and force no more."""
        with self._lock:
            self._jumps = False
            return list(self._forced)

    def _mask(self) -> bytes:
        new_ids = self._output_ids[self.matcher.num_taken :].tolist()
        start = time.thread_time()
        mask = self.matcher.allowed(new_ids)
        seconds = time.thread_time() - start
        self.mask_seconds = max(self.mask_seconds, seconds / max(1, len(new_ids)))
        return mask

    def _take(self, token: int) -> bool:
        """Force ``token`` unless the sampler must decide; return whether it was forced."""
        if not permitted(self._rules, self._output_ids, token):
            return False
        with self._lock:
            if not self._jumps or len(self._forced) >= MAX_FORCED_TOKENS:
                return False
            self._forced.append(token)
        self._output_ids = np.append(self._output_ids, np.int32(token))
        return True


def only_token(mask: bytes) -> int | None:
    """Return the only token of ``mask`` (a bit per id, lowest first); None for none or several."""
    words = np.frombuffer(mask, np.uint32)
    if np.count_nonzero(words) != 1:
        return None
    at = int(words.argmax())
    word = int(words[at])
    return None if word & (word - 1) else 32 * at + word.bit_length() - 1


def permitted(rules: TokenRules, output_ids: IntArray, token: int) -> bool:
    """Return whether everything but the grammar allows ``token`` after ``output_ids``."""
    forbidden = NO_IDS if rules.bad_words is None else rules.bad_words.forbidden(output_ids)
    ids, values = rules.bias(len(output_ids), forbidden)
    biases: npt.NDArray[np.float32] = values[ids == token]
    if np.isneginf(biases).any():
        return False
    return not rules.allowed_ids.size or token in rules.allowed_ids

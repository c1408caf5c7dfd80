"""Grammars that follow proposed tokens: the tokens they allow, and the mask after each.

It never chooses a token: proposals that are not followed are simply not tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from quire.core.structured_outputs import TokenMatcher, library_failure
from quire.runner.step.mask_threads import SLOW_SECONDS


class GrammarLookahead:
    """One row's grammar following proposed tokens; :meth:`run` is for another thread.

    It ends before the first token that the grammar forbids or that ends the sequence, and before
    a token whose mask takes long or reaches a limit: the draws there are made without it.

    Args:
        matcher: The row's matcher, at its last known token; no other thread uses it until
            :attr:`finished` is set.
        mask: Mask of the tokens that may follow that token.
        tokens: The proposed tokens.
        stop_ids: Ids that end the sequence.
        create_matcher: Call that creates another matcher, at the start of the output.

    Attributes:
        finished: Event that is set when :attr:`matcher` is back at the last known token.
        masks: Masks of the tokens that may come after each followed token, a bit per id; complete
            once finished.
        matcher: The matcher given, or a new one at the start of the output where it failed: a
            matcher stays at its limit, which must not fail a request for proposed tokens.
        mask_seconds: Computing time of the slowest mask.
    """

    def __init__(
        self,
        matcher: TokenMatcher,
        mask: bytes,
        tokens: Sequence[int],
        stop_ids: Collection[int],
        create_matcher: Callable[[], TokenMatcher],
    ) -> None:
        self.matcher = matcher
        self._mask = mask
        self._tokens = tokens
        self._stop_ids = stop_ids
        self._create_matcher = create_matcher
        self._is_told_to_stop = False
        self.finished = threading.Event()
        self.masks: list[bytes] = []
        self.mask_seconds = 0.0

    def run(self) -> None:
        """Follow the tokens as far as the grammar allows, and roll the matcher back."""
        num_known = self.matcher.num_taken
        try:
            try:
                self._follow()
                self.matcher.rollback(self.matcher.num_taken - num_known)
                failed = bool(self.matcher.error)
            except BaseException:  # Rust libraries raise panics as such
                failed = True
            if failed:
                self.matcher = self._create_matcher()
        except BaseException as error:
            self.matcher.fail(library_failure(error))
        finally:
            self.finished.set()

    def stop(self) -> None:
        """End :meth:`run` after the present token."""
        self._is_told_to_stop = True

    def _follow(self) -> None:
        mask = self._mask
        for token in self._tokens:
            if self._is_told_to_stop or token in self._stop_ids or not allows(mask, token):
                return
            start = time.thread_time()
            mask = self.matcher.allowed([token])
            seconds = time.thread_time() - start
            self.mask_seconds = max(self.mask_seconds, seconds)
            if seconds > SLOW_SECONDS or self.matcher.error:
                return
            self.masks.append(mask)


def allows(mask: bytes, token: int) -> bool:
    """Return whether ``mask`` (a bit per id, lowest first) has the bit of ``token``."""
    return 0 <= token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)

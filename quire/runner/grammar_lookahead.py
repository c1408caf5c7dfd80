"""Grammars past the tokens proposed: which of them they allow, and what may come after each.

It never says which token comes: proposals that are not followed are simply not tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from quire.core.structured_outputs import TokenMatcher
from quire.runner.mask_threads import SLOW_SECONDS


class GrammarLookahead:
    """One row's grammar on its way along proposed tokens; :meth:`run` is for another thread.

    It ends before the first token that the grammar forbids or that ends the sequence, and before
    one after which the mask takes long or runs into a limit: the draws there are made without it.

    Args:
        matcher: Of the row, at its last known token; nobody else uses it until :attr:`finished` is
            set.
        mask: What may come next there.
        tokens: Proposed.
        stop_ids: They end the sequence.
        create_matcher: Makes another one, at the start of the output.

    Attributes:
        finished: Set when :attr:`matcher` is as it was.
        masks: What may come after each token that was followed, a bit per id; complete once
            finished.
        matcher: The one given, or a new one at the start of the output where that one failed: a
            limit stays with it, and must not fail a request for tokens that are only proposed.
        mask_seconds: Computing time of the dearest mask.
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
        """Follow the tokens as far as that goes, and come back."""
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
            self.matcher.fail(f"[structured_outputs] the grammar's library failed: {error!r}.")
        finally:
            self.finished.set()

    def stop(self) -> None:
        """Have it end after the token that it is at."""
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

"""Grammars of the live rows: they follow drawn and proposed tokens in other threads.

A row whose grammar is at work is not ready: no token is drawn for it meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from quire.core.errors import RequestFailure
from quire.core.structured_outputs import GrammarSource, StructuredOutputs, TokenMatcher
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.runner.step.grammar_lookahead import GrammarLookahead
from quire.runner.step.jump_forward import GrammarAdvance
from quire.runner.step.mask_threads import SLOW_SECONDS, MaskJob, MaskThreads, wait
from quire.runner.step.token_rules import TokenRules


class RowGrammars:
    """Matchers in the rules of rows, and the threads that they work in.

    Args:
        table: The table of the rows' tokens.
        rules: Rules by row; those with a matcher have a grammar.
        source: Source of matchers; None where no request has structured outputs.
    """

    def __init__(
        self, table: TokenTable, rules: Mapping[int, TokenRules], source: GrammarSource | None
    ) -> None:
        self._table = table
        self._rules = rules
        self._source = source
        self._jumping: set[int] = set()  # rows whose grammar may decide tokens alone
        self._advances: dict[int, GrammarAdvance] = {}  # under way when last looked at
        self._lookaheads: dict[int, GrammarLookahead] = {}  # of this step, or still at work
        self._late: dict[int, IntArray] = {}  # outputs to follow once lookaheads are done
        self._threads = MaskThreads()

    def create_matcher(self, constraint: StructuredOutputs) -> TokenMatcher:
        """Return a new matcher at the start of an output; from any thread."""
        assert self._source is not None, "structured outputs without a source of grammars"
        return self._source.create_matcher(constraint)

    def begin(self, row: int, *, jumps: bool) -> None:
        """Begin a row whose rules have a matcher; the grammar follows the output it has already.

        Args:
            row: Row of the table.
            jumps: Whether the grammar may decide tokens without the model.
        """
        if jumps:
            self._jumping.add(row)
        if len(output_ids(self._table, row)):
            with suppress(RuntimeError):  # without a thread it follows when a token is drawn
                self._advances[row] = self._follow(row, output_ids(self._table, row), jumps=False)

    def restart(self, row: int) -> None:
        """Reset the grammar of ``row``, if it has one, to the output's start."""
        if self.has_grammar(row):
            rules = self._rules[row]
            self.unready_rows()  # records which of those that are done were slow
            self._forget_jobs(row)
            rules.matcher = self._create_matcher(rules)
            rules.known, rules.has_looked_ahead = None, False

    def forget(self, row: int) -> None:
        """Release a row, which gets other rules."""
        self._jumping.discard(row)
        self._forget_jobs(row)

    def has_grammar(self, row: int) -> bool:
        """Return whether a grammar decides the tokens allowed for ``row``."""
        rules = self._rules.get(row)
        return rules is not None and rules.matcher is not None

    def error(self, row: int) -> RequestFailure | None:
        """Return the failure of a row's grammar; None for none."""
        rules = self._rules.get(row)
        # A matcher that looks ahead had no error before, and must not be asked now.
        if rules is None or rules.matcher is None or row in self._lookaheads:
            return None
        return rules.matcher.error

    def can_follow_proposals(self, row: int) -> bool:
        """Return whether tokens proposed for ``row`` may be drawn in this step.

        Without a grammar they may. A grammar follows them in another thread if it has not been slow
        and has no work left, and if the mask of the token that is drawn anyway is known.
        """
        rules = self._rules.get(row)
        if rules is None or rules.matcher is None:
            return True
        if row in self._lookaheads and not self._take_lookahead(row):
            return False
        num_known = len(output_ids(self._table, row))
        if rules.is_slow or rules.known is None or rules.known[0] != num_known:
            return False
        return rules.matcher.num_taken == num_known and not rules.matcher.error

    def look_ahead(self, counts: Mapping[int, int], num_others: int) -> dict[int, int]:
        """Let the grammars of rows follow proposed tokens in other threads, and roll back.

        It waits a little; no proposed token is tried for rows that are not done then.

        Args:
            counts: Number of proposed tokens in the table after the known ones, by row that
                :meth:`can_follow_proposals`; some rows have no grammar.
            num_others: Other rows of the step.

        Returns:
            Number of these tokens to try, at most, by row; :meth:`mask` has the mask after each.
        """
        followed = dict(counts)
        begun: dict[int, GrammarLookahead] = {}
        for row, count in counts.items():
            rules = self._rules.get(row)
            if count and rules is not None and rules.matcher is not None:
                followed[row] = 0
                with suppress(RuntimeError):  # there is no thread
                    begun[row] = self._look_ahead(row, rules.matcher, count)
        self._lookaheads |= begun
        wait(list(begun.values()), alone=len(counts) + num_others == 1)
        for row, lookahead in begun.items():
            lookahead.stop()
            if lookahead.finished.is_set():
                followed[row] = len(lookahead.masks)
        return followed

    def advance(self, rows: Sequence[int], num_others: int) -> dict[int, list[int]]:
        """Let the grammars of rows follow the tokens drawn in other threads.

        It waits a little; rows that are not done then are among :meth:`unready_rows`.

        Args:
            rows: Rows of the table whose last tokens were drawn in this step; some have no grammar.
            num_others: Other rows of the step.

        Returns:
            Tokens that must come next, by row, appended to the table; the scheduler drops those
            after the sequence's end.
        """
        advances: dict[int, GrammarAdvance] = {}
        for row in rows:
            rules = self._rules.get(row)
            if rules is not None and rules.matcher is not None:
                if row in self._lookaheads and not self._take_lookahead(row):
                    self._late[row] = output_ids(self._table, row).copy()
                    continue
                jumps, output = row in self._jumping, output_ids(self._table, row)
                advances[row] = self._follow(row, output, jumps=jumps)
        if not advances:
            return {}
        alone = len(rows) + num_others == 1
        waits = [advances[row] for row in advances if alone or not self._rules[row].is_slow]
        wait(waits, alone=alone)
        self._advances.update(advances)
        forced = {row: advance.stop_forcing() for row, advance in advances.items()}
        for row, tokens in forced.items():
            for token in tokens:
                row_ids, token_ids = np.array([row], np.int32), np.array([token], np.int32)
                self._table.append_tokens(row_ids, token_ids)
        self.unready_rows()
        return forced

    def unready_rows(self) -> list[int]:
        """Return the rows whose grammars are still at work; no token can be drawn for them."""
        for row in [row for row in self._late if self._take_lookahead(row)]:
            with suppress(RuntimeError):  # without a thread it follows when a token is drawn
                self._advances[row] = self._follow(row, self._late.pop(row), jumps=False)
        for row in [row for row, advance in self._advances.items() if advance.finished.is_set()]:
            rules, advance = self._rules[row], self._advances.pop(row)
            rules.is_slow |= advance.mask_seconds > SLOW_SECONDS
            rules.known = advance.known
            if rules.matcher is not advance.matcher:
                rules.matcher, rules.has_looked_ahead = advance.matcher, False
        return [*self._advances, *self._late]

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until a grammar at work is done, at most ``seconds``."""
        late = [self._lookaheads[row] for row in self._late]
        jobs: list[MaskJob] = [*self._advances.values(), *late]
        if jobs:
            jobs[0].finished.wait(seconds)

    def close(self) -> None:
        """End the threads; no call follows."""
        self._threads.close()

    def mask(self, row: int, num_ahead: int) -> bytes:
        """Return the mask of the tokens that may follow, a bit per id.

        Args:
            row: A row with a grammar.
            num_ahead: Number of proposed tokens after the known ones; 0 to follow these alone.
        """
        if num_ahead == 0:
            return self._known_mask(row)
        lookahead = self._lookaheads.get(row)
        assert lookahead is not None and lookahead.finished.is_set(), f"row {row}"
        return lookahead.masks[num_ahead - 1]

    def _known_mask(self, row: int) -> bytes:
        """Return the mask of the tokens that may follow the known ones, a bit per id.

        The matcher is asked where no thread has followed the known tokens: at the output's start,
        and after a step that failed.
        """
        assert row not in self._advances, f"row {row} is not ready"
        rules, output = self._rules[row], output_ids(self._table, row)
        if rules.known is None or rules.known[0] != len(output):
            assert rules.matcher is not None and row not in self._lookaheads, f"row {row}"
            new_ids = output[rules.matcher.num_taken :].tolist()
            rules.known = len(output), rules.matcher.allowed(new_ids)
        return rules.known[1]

    def _follow(self, row: int, output: IntArray, *, jumps: bool) -> GrammarAdvance:
        """Let the grammar of a row follow the row's output in another thread."""
        rules = self._rules[row]
        create = partial(self._create_matcher, rules) if rules.has_looked_ahead else None
        advance = GrammarAdvance(rules, output.copy(), jumps, create)
        self._threads.submit(advance, slow=rules.is_slow)
        return advance

    def _look_ahead(self, row: int, matcher: TokenMatcher, count: int) -> GrammarLookahead:
        """Let the grammar of a row follow its proposed tokens in another thread."""
        rules, start = self._rules[row], int(self._table.num_tokens[row])
        assert rules.known is not None and not rules.is_slow, f"row {row} has no mask to begin with"
        proposed = self._table.token_ids[row, start : start + count].tolist()
        stop_ids = frozenset(rules.stop_ids.tolist())
        create = partial(self._create_matcher, rules)
        lookahead = GrammarLookahead(matcher, rules.known[1], proposed, stop_ids, create)
        self._threads.submit(lookahead, slow=False)
        rules.has_looked_ahead = True
        return lookahead

    def _take_lookahead(self, row: int) -> bool:
        """Release a row's lookahead if it is done; return whether it is."""
        lookahead, rules = self._lookaheads[row], self._rules[row]
        if not lookahead.finished.is_set():
            return False
        del self._lookaheads[row]
        rules.is_slow |= lookahead.mask_seconds > SLOW_SECONDS
        if rules.matcher is not lookahead.matcher:
            rules.matcher, rules.has_looked_ahead = lookahead.matcher, False
        return True

    def _create_matcher(self, rules: TokenRules) -> TokenMatcher:
        assert rules.constraint is not None
        return self.create_matcher(rules.constraint)

    def _forget_jobs(self, row: int) -> None:
        """Discard the results of threads that work on a row's grammar."""
        self._advances.pop(row, None)
        self._late.pop(row, None)
        lookahead = self._lookaheads.pop(row, None)
        if lookahead is not None:
            lookahead.stop()


def output_ids(table: TokenTable, row: int) -> IntArray:
    """Return the output tokens of ``row``."""
    return table.tokens(row)[table.num_prompt_tokens[row] :]

"""Sampling settings of the live requests by row, and the arrays a step samples with.

It turns the settings into arrays for the next token (penalty history, bias, forbidden and allowed
ids); the arithmetic on logits is the backend's ``sample``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.errors import FailureKind, RequestFailure
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import GrammarSource, TokenMatcher
from quire.kernels.backend import Backend
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.runner.step.bad_words import BadWords
from quire.runner.step.grammar_lookahead import GrammarLookahead
from quire.runner.step.jump_forward import GrammarAdvance
from quire.runner.step.mask_threads import SLOW_SECONDS, MaskJob, MaskThreads, wait
from quire.runner.step.token_rules import NO_IDS, FloatArray, TokenRules

_NO_VALUES: FloatArray = np.empty(0, np.float32)
_NO_MASKS: npt.NDArray[np.uint32] = np.empty((0, 0), np.uint32)
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class SamplingState:
    """Settings of each row of a :class:`TokenTable`, written once per request.

    Args:
        table: The table of the rows' tokens.
        eos_token_ids: The model's end-of-sequence ids.
        backend: The backend that the arrays of a batch are for.
        grammars: Source of matchers for requests with structured outputs.
    """

    def __init__(
        self,
        table: TokenTable,
        eos_token_ids: Sequence[int],
        backend: Backend,
        grammars: GrammarSource | None = None,
    ) -> None:
        self._table = table
        self._eos_token_ids = tuple(eos_token_ids)
        self._backend = backend
        self._grammars = grammars
        rows = len(table.num_tokens)
        self._floats: FloatArray = np.zeros((len(_FLOATS), rows), np.float32)
        self._top_k: IntArray = np.zeros(rows, np.int32)
        self._seed: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        self._rules: dict[int, TokenRules] = {}
        self._jumping: set[int] = set()  # rows whose grammar may decide tokens alone
        self._advances: dict[int, GrammarAdvance] = {}  # under way when last looked at
        self._lookaheads: dict[int, GrammarLookahead] = {}  # of this step, or still at work
        self._late: dict[int, IntArray] = {}  # outputs to follow once lookaheads are done
        self._threads = MaskThreads()

    def set(self, row: int, params: SamplingParams, seed: int, parent: int | None = None) -> None:
        """Set the settings of ``row``, in place of an earlier request's.

        When the row has output already, its grammar begins to follow that in another thread, and it
        is among :meth:`unready_rows` until that is done.

        Args:
            row: Row of the table.
            params, seed: Settings and seed of the request.
            parent: The row that it splits off from, with the same settings; None for a new request.
        """
        if row >= len(self._seed):
            self._grow()
        self._floats[:, row] = [getattr(params, name) for name in _FLOATS]
        self._top_k[row] = max(params.top_k, 0)
        self._seed[row] = seed & 0xFFFFFFFFFFFFFFFF
        matcher = None
        if params.structured_outputs is not None:
            assert self._grammars is not None, "structured outputs without a source of grammars"
            matcher = self._grammars.create_matcher(params.structured_outputs)
        if parent is None:
            rules = TokenRules.from_params(params, self._eos_token_ids, matcher)
        else:
            rules = self._rules[parent].for_row(matcher) if parent in self._rules else None
        self._rules.pop(row, None)
        self._jumping.discard(row)
        self._forget_jobs(row)
        if rules is not None:
            self._rules[row] = rules
            # Log-probabilities are the model's, which must compute them.
            if matcher is not None and params.logprobs is None:
                self._jumping.add(row)
            if matcher is not None and len(self._output_ids(row)):
                with suppress(RuntimeError):  # without a thread it follows when a token is drawn
                    self._advances[row] = self._follow(row, self._output_ids(row), jumps=False)

    def restart(self, row: int) -> None:
        """Reset grammar and bad words of ``row`` to the output's start, because its step failed.

        The step is computed again at once, so they follow the row's output when the token is drawn.
        """
        rules = self._rules.get(row)
        if rules is not None and rules.bad_words is not None:
            rules.bad_words = rules.bad_words.for_row()
        if rules is not None and rules.matcher is not None:
            self.unready_rows()  # records which of those that are done were slow
            self._forget_jobs(row)
            rules.matcher = self._create_matcher(rules)
            rules.known, rules.has_looked_ahead = None, False

    def has_rules(self, row: int) -> bool:
        """Return whether the tokens allowed for ``row`` depend on those before."""
        return row in self._rules

    def temperature(self, rows: IntArray) -> FloatArray:
        """Return the temperatures of ``rows`` (B,); 0 for those that take the likeliest token."""
        found: FloatArray = self._floats[_FLOATS.index("temperature"), rows]
        return found

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
        num_known = len(self._output_ids(row))
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
            Number of these tokens to try, at most, by row; :meth:`batch` uses the mask after each.
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
                    self._late[row] = self._output_ids(row).copy()
                    continue
                jumps = row in self._jumping
                advances[row] = self._follow(row, self._output_ids(row), jumps=jumps)
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

    def batch(self, rows: IntArray, lengths: IntArray) -> SamplingBatch:
        """Assemble the arrays with which ``sample`` draws one token after each position.

        Args:
            rows: (B,), rows of the table. A row may occur several times, one after the other: first
                with known tokens alone, then with proposed ones that the table has after them.
            lengths: (B,), tokens of the row before the draw; more each time the row occurs, and at
                most those that :meth:`look_ahead` has followed where the row has a grammar.

        Returns:
            The same arrays as for draws one by one.
        """
        if self._rules.keys().isdisjoint(rows.tolist()):
            return self._assemble(rows, lengths, _no_rules(len(rows)))
        masks: dict[int, bytes] = {}
        for i, (row, num_ahead) in enumerate(self._places(rows, lengths)):
            if self._has_grammar(row):
                lookahead = self._lookaheads.get(row)
                if num_ahead == 0:
                    masks[i] = self._known_mask(row)
                else:
                    assert lookahead is not None and lookahead.finished.is_set(), f"row {row}"
                    masks[i] = lookahead.masks[num_ahead - 1]
        return self._assemble(rows, lengths, self._rule_arrays(rows, lengths, masks))

    def draft_batch(self, rows: IntArray, lengths: IntArray) -> SamplingBatch:
        """Assemble the arrays with which ``sample`` proposes a token for each row.

        It does the same as :meth:`batch`, but without grammars after proposed tokens, which they
        have not followed yet.
        """
        if self._rules.keys().isdisjoint(rows.tolist()):
            return self._assemble(rows, lengths, _no_rules(len(rows)))
        places = enumerate(self._places(rows, lengths))
        masks = {
            i: self._known_mask(row)
            for i, (row, num_ahead) in places
            if num_ahead == 0 and self._has_grammar(row)
        }
        return self._assemble(rows, lengths, self._rule_arrays(rows, lengths, masks))

    def _assemble(
        self, rows: IntArray, lengths: IntArray, rule_arrays: Mapping[str, npt.NDArray[Any]]
    ) -> SamplingBatch:
        """Assemble a batch from the settings and the arrays of rules."""
        floats = self._floats.take(rows, axis=1)
        num_prompt_tokens = self._table.num_prompt_tokens[rows]
        sampling = SamplingBatch(
            **dict(zip(_FLOATS, floats, strict=True)),
            top_k=self._top_k[rows],
            seed=self._seed[rows],
            position=(lengths - num_prompt_tokens).astype(np.int64),
            **{"num_prompt_tokens": num_prompt_tokens, **rule_arrays},
        )
        return self._backend.upload(sampling)

    def _rule_arrays(
        self, rows: IntArray, lengths: IntArray, masks: Mapping[int, bytes]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the rules of ``rows``, with masks by index into ``rows``."""
        table, count = self._table, len(rows)
        history, bias_ids, allowed = [NO_IDS], [NO_IDS], [NO_IDS]
        bias_values = [_NO_VALUES]
        ruled = [(i, row) for i, row in enumerate(rows.tolist()) if row in self._rules]
        sizes = np.zeros((3, count + 1), np.int64)
        mask_rows = np.full(count, -1, np.int32)
        mask_rows[list(masks)] = np.arange(len(masks))
        words = [np.frombuffer(mask, np.uint32) for mask in masks.values()]
        num_prompt = table.num_prompt_tokens[rows]
        forbidden = self._forbidden(ruled, rows, lengths)
        for i, row in ruled:
            rules, tokens = self._rules[row], table.token_ids[row, : lengths[i]]
            num_output = len(tokens) - int(num_prompt[i])
            ids, values = rules.bias(num_output, forbidden.get(i, NO_IDS))
            bias_ids.append(ids)
            bias_values.append(values)
            allowed.append(rules.allowed_ids)
            sizes[1:, i + 1] = len(ids), len(rules.allowed_ids)
            if rules.num_penalized:
                start = max(len(tokens) - rules.num_penalized, 0)
                history.append(tokens[start:])
                sizes[0, i + 1] = len(tokens) - start
                num_prompt[i] = max(int(num_prompt[i]) - start, 0)
        offsets = np.cumsum(sizes, axis=1)
        return {
            "history_ids": np.concatenate(history),
            "history_offsets": offsets[0],
            "num_prompt_tokens": num_prompt,
            "bias_ids": np.concatenate(bias_ids),
            "bias_values": np.concatenate(bias_values),
            "bias_offsets": offsets[1],
            "allowed_ids": np.concatenate(allowed),
            "allowed_offsets": offsets[2],
            "mask_words": np.stack(words) if words else _NO_MASKS,
            "mask_rows": mask_rows,
        }

    def _forbidden(
        self, ruled: Sequence[tuple[int, int]], rows: IntArray, lengths: IntArray
    ) -> dict[int, IntArray]:
        """Return the tokens that bad words forbid next, by index into ``rows``."""
        words: dict[int, BadWords] = {}
        for i, row in ruled:
            own = self._rules[row].bad_words
            if own is not None:
                words[i] = own
        if not words:
            return {}
        places, owners = list(words), list(words.values())
        found = BadWords.forbidden_of_rows(owners, self._table, rows[places], lengths[places])
        return dict(zip(places, found, strict=True))

    def seed(self, row: int) -> int:
        """Return the seed of the draws of ``row``."""
        return int(self._seed[row])

    def failure(self, row: int) -> RequestFailure:
        """Return the reason why no token could be drawn for ``row``."""
        rules = self._rules.get(row)
        # A matcher that looks ahead had no error before, and must not be asked now.
        if rules is not None and rules.matcher is not None and row not in self._lookaheads:
            error = rules.matcher.error
            if error:
                return error
        output_ids = self._output_ids(row)
        output_ids = output_ids[output_ids >= 0]  # -1 where none could be drawn
        if rules is not None and not rules.leave_a_token(output_ids):
            return RequestFailure(
                FailureKind.NO_TOKEN,
                "[sampling] the settings must leave a token; structured_outputs, "
                "allowed_token_ids, min_tokens, bad_words and logit_bias together forbid all of "
                f"them at output token {len(output_ids) + 1}. Leave one of these out.",
            )
        return RequestFailure(
            FailureKind.ENGINE,
            "[sampling] logits must be finite; got NaN or infinity. The checkpoint or its dtype "
            "cannot compute this input.",
        )

    def _output_ids(self, row: int) -> IntArray:
        return self._table.tokens(row)[self._table.num_prompt_tokens[row] :]

    def _has_grammar(self, row: int) -> bool:
        rules = self._rules.get(row)
        return rules is not None and rules.matcher is not None

    def _places(self, rows: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
        """Return the row of each draw, and the number of proposed tokens before it."""
        num_ahead = lengths - self._table.num_tokens[rows]
        return list(zip(rows.tolist(), num_ahead.tolist(), strict=True))

    def _known_mask(self, row: int) -> bytes:
        """Return the mask of the tokens that may follow the known ones, a bit per id.

        The matcher is asked where no thread has followed the known tokens: at the output's start,
        and after a step that failed.
        """
        assert row not in self._advances, f"row {row} is not ready"
        rules, output_ids = self._rules[row], self._output_ids(row)
        if rules.known is None or rules.known[0] != len(output_ids):
            assert rules.matcher is not None and row not in self._lookaheads, f"row {row}"
            new_ids = output_ids[rules.matcher.num_taken :].tolist()
            rules.known = len(output_ids), rules.matcher.allowed(new_ids)
        return rules.known[1]

    def _follow(self, row: int, output_ids: IntArray, *, jumps: bool) -> GrammarAdvance:
        """Let the grammar of a row follow the row's output in another thread."""
        rules = self._rules[row]
        create = partial(self._create_matcher, rules) if rules.has_looked_ahead else None
        advance = GrammarAdvance(rules, output_ids.copy(), jumps, create)
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
        """Return a new matcher for a row at the start of its output; from any thread."""
        assert self._grammars is not None and rules.constraint is not None
        return self._grammars.create_matcher(rules.constraint)

    def _forget_jobs(self, row: int) -> None:
        """Discard the results of threads that work on a row's grammar."""
        self._advances.pop(row, None)
        self._late.pop(row, None)
        lookahead = self._lookaheads.pop(row, None)
        if lookahead is not None:
            lookahead.stop()

    def _grow(self) -> None:
        self._floats = np.concatenate([self._floats, np.zeros_like(self._floats)], axis=1)
        self._top_k = np.concatenate([self._top_k, np.zeros_like(self._top_k)])
        self._seed = np.concatenate([self._seed, np.zeros_like(self._seed)])


def _no_rules(count: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of ``count`` rows without rules."""
    offsets = np.zeros(count + 1, np.int64)
    return {
        "history_ids": NO_IDS,
        "history_offsets": offsets,
        "bias_ids": NO_IDS,
        "bias_values": _NO_VALUES,
        "bias_offsets": offsets,
        "allowed_ids": NO_IDS,
        "allowed_offsets": offsets,
        "mask_words": _NO_MASKS,
        "mask_rows": np.full(count, -1, np.int32),
    }

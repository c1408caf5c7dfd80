"""Sampling settings of the live requests by row, and the arrays a step samples with.

It owns what the settings mean for the next token (penalty history, bias, forbidden and allowed
ids); the arithmetic on logits is the backend's ``sample``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import GrammarSource
from quire.kernels.backend import Backend, SamplingBatch
from quire.kernels.token_table import IntArray, TokenTable
from quire.runner.jump_forward import GrammarAdvance
from quire.runner.mask_threads import SLOW_SECONDS, MaskThreads, wait
from quire.runner.token_rules import FloatArray, TokenRules

_NO_IDS: IntArray = np.empty(0, np.int32)
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
        table: Where the rows' tokens are.
        eos_token_ids: The model's end-of-sequence ids.
        backend: Where the arrays of a batch go.
        grammars: Where requests with structured outputs get their matchers.
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
        self._advances: dict[int, GrammarAdvance] = {}  # that were under way when last looked at
        self._threads = MaskThreads()

    def set(self, row: int, params: SamplingParams, seed: int) -> None:
        """Remember the settings of ``row``, whoever had it before.

        When the row has output already, its grammar begins to follow that in another thread, and it
        is among :meth:`unready_rows` until that is done.
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
        rules = TokenRules.from_params(params, self._eos_token_ids, matcher)
        self._rules.pop(row, None)
        self._jumping.discard(row)
        self._advances.pop(row, None)
        if rules is not None:
            self._rules[row] = rules
            # Log-probabilities are the model's: it must be asked.
            if matcher is not None and params.logprobs is None:
                self._jumping.add(row)
            if matcher is not None and len(self._output_ids(row)):
                with suppress(RuntimeError):  # without a thread it follows when a token is drawn
                    self._advances[row] = self._follow(row, jumps=False)

    def restart(self, row: int, params: SamplingParams) -> None:
        """Forget how far the grammar of ``row`` has got, because its step failed.

        The step is computed again at once, so it follows the row's output when the token is drawn.
        """
        rules = self._rules.get(row)
        if rules is not None and rules.matcher is not None:
            assert self._grammars is not None and params.structured_outputs is not None
            self.unready_rows()  # those that are done tell whether they were slow
            self._advances.pop(row, None)
            rules.matcher = self._grammars.create_matcher(params.structured_outputs)

    def advance(self, rows: Sequence[int], num_others: int) -> dict[int, list[int]]:
        """Have the grammars of rows follow the tokens drawn, in other threads.

        It waits a little; those that are not done then are among :meth:`unready_rows`.

        Args:
            rows: Of the table, whose last tokens were drawn in this step; some without a grammar.
            num_others: Other rows of the step.

        Returns:
            By row the tokens that must come next, appended to the table: whether the sequence has
            room is for the scheduler, which drops what comes after its end.
        """
        advances: dict[int, GrammarAdvance] = {}
        for row in rows:
            rules = self._rules.get(row)
            if rules is not None and rules.matcher is not None:
                advances[row] = self._follow(row, jumps=row in self._jumping)
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
        for row in [row for row, advance in self._advances.items() if advance.finished.is_set()]:
            self._rules[row].is_slow |= self._advances.pop(row).mask_seconds > SLOW_SECONDS
        return list(self._advances)

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until a grammar at work is done, at most that long."""
        for advance in self._advances.values():
            advance.finished.wait(seconds)
            return

    def close(self) -> None:
        """End the threads; no call follows."""
        self._threads.close()

    def batch(self, rows: IntArray, lengths: IntArray) -> SamplingBatch:
        """Assemble what ``sample`` needs to draw one token after each position.

        Args:
            rows: (B,) of the table. A row may occur several times, one after the other: first with
                the tokens that are known, then with proposed ones that the table has after them.
            lengths: (B,) tokens of the row before the draw; more each time the row occurs.

        Returns:
            What drawing one by one would be given. After a token that a grammar forbids, no token
            is possible.
        """
        table, count = self._table, len(rows)
        history, bias_ids, allowed = [_NO_IDS], [_NO_IDS], [_NO_IDS]
        bias_values = [_NO_VALUES]
        ruled = [(i, row) for i, row in enumerate(rows.tolist()) if row in self._rules]
        num_known: dict[int, int] = {}  # output tokens, of rows with a grammar
        sizes = np.zeros((3, count + 1), np.int64)
        mask_rows = np.full(count, -1, np.int32)
        masks: list[npt.NDArray[np.uint32]] = []
        for i, row in ruled:
            rules, tokens = self._rules[row], table.token_ids[row, : lengths[i]]
            output_ids = tokens[table.num_prompt_tokens[row] :]
            if rules.matcher is not None:
                assert row not in self._advances, f"row {row} is not ready"
                num_known.setdefault(row, len(output_ids))
                mask_rows[i] = len(masks)
                new_ids = output_ids[rules.matcher.num_taken :].tolist()
                masks.append(np.frombuffer(rules.matcher.allowed(new_ids), np.uint32))
            ids, values = rules.bias(output_ids)
            bias_ids.append(ids)
            bias_values.append(values)
            allowed.append(rules.allowed_ids)
            sizes[1:, i + 1] = len(ids), len(rules.allowed_ids)
            if rules.penalized:
                history.append(tokens)
                sizes[0, i + 1] = len(tokens)
        for row, length in num_known.items():
            matcher = self._rules[row].matcher
            assert matcher is not None
            matcher.rollback(matcher.num_taken - length)
        offsets = np.cumsum(sizes, axis=1)
        floats = np.take(self._floats, rows, axis=1)
        num_prompt_tokens = table.num_prompt_tokens[rows]
        sampling = SamplingBatch(
            **{name: floats[i] for i, name in enumerate(_FLOATS)},
            top_k=self._top_k[rows],
            seed=self._seed[rows],
            position=(lengths - num_prompt_tokens).astype(np.int64),
            history_ids=np.concatenate(history),
            history_offsets=offsets[0],
            num_prompt_tokens=num_prompt_tokens,
            bias_ids=np.concatenate(bias_ids),
            bias_values=np.concatenate(bias_values),
            bias_offsets=offsets[1],
            allowed_ids=np.concatenate(allowed),
            allowed_offsets=offsets[2],
            mask_words=np.stack(masks) if masks else _NO_MASKS,
            mask_rows=mask_rows,
        )
        return self._backend.upload(sampling)

    def seed(self, row: int) -> int:
        """Return the seed of the draws of ``row``."""
        return int(self._seed[row])

    def has_grammar(self, row: int) -> bool:
        """Whether a grammar says which tokens may follow in ``row``."""
        rules = self._rules.get(row)
        return rules is not None and rules.matcher is not None

    def refusal(self, row: int) -> str:
        """Say why no token could be drawn for ``row``."""
        rules = self._rules.get(row)
        if rules is not None and rules.matcher is not None and rules.matcher.error:
            return rules.matcher.error
        if rules is not None:
            return (
                "[sampling] a token must be possible; structured_outputs, allowed_token_ids, "
                "min_tokens, bad_words and logit_bias forbid all of them together, or the logits "
                "are not finite."
            )
        return (
            "[sampling] logits must be finite; got NaN or infinity. The checkpoint or its dtype "
            "cannot compute this input."
        )

    def _output_ids(self, row: int) -> IntArray:
        return self._table.tokens(row)[self._table.num_prompt_tokens[row] :]

    def _follow(self, row: int, *, jumps: bool) -> GrammarAdvance:
        """Have the grammar of a row follow the row's output in another thread."""
        rules = self._rules[row]
        advance = GrammarAdvance(rules, self._output_ids(row).copy(), jumps)
        self._threads.submit(advance, slow=rules.is_slow)
        return advance

    def _grow(self) -> None:
        self._floats = np.concatenate([self._floats, np.zeros_like(self._floats)], axis=1)
        self._top_k = np.concatenate([self._top_k, np.zeros_like(self._top_k)])
        self._seed = np.concatenate([self._seed, np.zeros_like(self._seed)])

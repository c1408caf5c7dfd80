"""Sampling settings of the live requests by row, and the arrays a step samples with.

It turns the settings into arrays for the next token (penalty history, bias, forbidden and allowed
ids); the arithmetic on logits is the backend's ``sample``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.errors import FailureKind, RequestFailure
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import GrammarSource
from quire.kernels.backend import Backend
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.runner.step.bad_words import BadWords
from quire.runner.step.row_grammars import RowGrammars, output_ids
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

    Attributes:
        grammars: Grammars of the rows.
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
        rows = len(table.num_tokens)
        self._floats: FloatArray = np.zeros((len(_FLOATS), rows), np.float32)
        self._top_k: IntArray = np.zeros(rows, np.int32)
        self._seed: npt.NDArray[np.uint64] = np.zeros(rows, np.uint64)
        self._rules: dict[int, TokenRules] = {}
        self.grammars = RowGrammars(table, self._rules, grammars)

    def set(self, row: int, params: SamplingParams, seed: int, parent: int | None = None) -> None:
        """Set the settings of ``row``, in place of an earlier request's.

        When the row has output already, its grammar begins to follow that in another thread, and it
        is not ready until that is done.

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
            matcher = self.grammars.create_matcher(params.structured_outputs)
        if parent is None:
            rules = TokenRules.from_params(params, self._eos_token_ids, matcher)
        else:
            rules = self._rules[parent].for_row(matcher) if parent in self._rules else None
        self._rules.pop(row, None)
        self.grammars.forget(row)
        if rules is not None:
            self._rules[row] = rules
            if matcher is not None:
                # Log-probabilities are the model's, which must compute them.
                self.grammars.begin(row, jumps=params.logprobs is None)

    def restart(self, row: int) -> None:
        """Reset grammar and bad words of ``row`` to the output's start, because its step failed.

        The step is computed again at once, so they follow the row's output when the token is drawn.
        """
        rules = self._rules.get(row)
        if rules is not None and rules.bad_words is not None:
            rules.bad_words = rules.bad_words.for_row()
        self.grammars.restart(row)

    def has_rules(self, row: int) -> bool:
        """Return whether the tokens allowed for ``row`` depend on those before."""
        return row in self._rules

    def temperature(self, rows: IntArray) -> FloatArray:
        """Return the temperatures of ``rows`` (B,); 0 for those that take the likeliest token."""
        found: FloatArray = self._floats[_FLOATS.index("temperature"), rows]
        return found

    def batch(self, rows: IntArray, lengths: IntArray) -> SamplingBatch:
        """Assemble the arrays with which ``sample`` draws one token after each position.

        Args:
            rows: (B,), rows of the table. A row may occur several times, one after the other: first
                with known tokens alone, then with proposed ones that the table has after them.
            lengths: (B,), tokens of the row before the draw; more each time the row occurs, and at
                most those that the row's grammar has followed where it has one.

        Returns:
            The same arrays as for draws one by one.
        """
        if self._rules.keys().isdisjoint(rows.tolist()):
            return self._assemble(rows, lengths, _no_rules(len(rows)))
        masks: dict[int, bytes] = {}
        for i, (row, num_ahead) in enumerate(self._places(rows, lengths)):
            if self.grammars.has_grammar(row):
                masks[i] = self.grammars.mask(row, num_ahead)
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
            i: self.grammars.mask(row, num_ahead)
            for i, (row, num_ahead) in places
            if num_ahead == 0 and self.grammars.has_grammar(row)
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
        if error := self.grammars.error(row):
            return error
        rules, drawn = self._rules.get(row), output_ids(self._table, row)
        drawn = drawn[drawn >= 0]  # -1 where none could be drawn
        if rules is not None and not rules.leave_a_token(drawn):
            return RequestFailure(
                FailureKind.NO_TOKEN,
                "[sampling] the settings must leave a token; structured_outputs, "
                "allowed_token_ids, min_tokens, bad_words and logit_bias together forbid all of "
                f"them at output token {len(drawn) + 1}. Leave one of these out.",
            )
        return RequestFailure(
            FailureKind.ENGINE,
            "[sampling] logits must be finite; got NaN or infinity. The checkpoint or its dtype "
            "cannot compute this input.",
        )

    def _places(self, rows: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
        """Return the row of each draw, and the number of proposed tokens before it."""
        num_ahead = lengths - self._table.num_tokens[rows]
        return list(zip(rows.tolist(), num_ahead.tolist(), strict=True))

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

"""What bad words forbid, against comparing each of them with the end of the output."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.sampling_params import SamplingParams
from quire.kernels.batch.token_table import TokenTable
from quire.runner.step.sampling_state import SamplingState
from tests.python_lines import lines_run

PROMPT = [1, 2]
few_tokens = st.lists(st.integers(0, 2), max_size=6)
words_of_requests = st.lists(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=9),
    min_size=1,
    max_size=3,
)
#: Tokens that are proposed, how many of them hold, and whether the step fails at first.
steps_of_requests = st.lists(st.tuples(few_tokens, st.integers(0, 6), st.booleans()), max_size=9)


def compared(words: list[list[int]], output: list[int]) -> set[int]:
    """Return the last token of each word whose others are the last ones of the output."""
    return {
        word[-1]
        for word in words
        if len(word) - 1 <= len(output) and output[len(output) - len(word) + 1 :] == word[:-1]
    }


class NumpyArrays:
    """The one thing the sampling state asks of a backend."""

    def upload(self, arrays: Any) -> Any:
        return arrays


class Sequences:
    """Requests in a table, whose outputs grow."""

    def __init__(self) -> None:
        self.table = TokenTable(2, 4)
        self.state = SamplingState(self.table, [], NumpyArrays())  # type: ignore[arg-type]

    def add(self, name: str, words: list[list[int]], output: list[int]) -> int:
        row = self.table.add(name, PROMPT + output, len(PROMPT))
        self.state.set(row, SamplingParams(bad_words_token_ids=words), 0)
        return row

    def fork(self, parent: str, child: str) -> int:
        row, before = self.table.fork(parent, child), self.table.rows[parent]
        self.state.set(row, SamplingParams(), 0, parent=before)  # the parent's settings count
        return row

    def forbidden(self, rows: list[int], counts: list[int]) -> list[set[int]]:
        """Return what may not come after that many tokens of each row, one row after another."""
        places = np.array(rows, np.int32), np.array(counts, np.int32) + len(PROMPT)
        batch = self.state.batch(*places)
        offsets = batch.bias_offsets.tolist()
        assert np.isneginf(batch.bias_values).all()
        found = [batch.bias_ids[a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
        return list(map(set, found))

    def propose(self, rows: list[int], tokens: list[int]) -> None:
        start = self.table.num_tokens[rows[0]]
        self.table.reserve(np.array(rows), np.full(len(rows), len(tokens) + 1))
        self.table.token_ids[rows, start : start + len(tokens)] = tokens


@settings(deadline=None)
@given(all_words=words_of_requests, output=few_tokens, steps=steps_of_requests)
def test_equals_a_comparison_of_each_word(all_words, output, steps):
    """At each proposed position, after steps that failed, and after those that go back."""
    sequences = Sequences()
    rows = [sequences.add(str(i), words, output) for i, words in enumerate(all_words)]
    for proposed, held, fails in steps:
        sequences.propose(rows, proposed)
        ahead = range(len(proposed) + 1)
        for is_last in (False, True) if fails else (True,):
            found = sequences.forbidden(
                [row for row in rows for _ in ahead], [len(output) + k for k in ahead] * len(rows)
            )
            expected = [
                compared(words, output + proposed[:k]) for words in all_words for k in ahead
            ]
            assert found == expected
            if not is_last:  # the step fails when its tokens were drawn
                sequences.table.append_tokens(np.array(rows), np.array([2] * len(rows)))
                sequences.forbidden(rows, [len(output) + 1] * len(rows))
                sequences.table.num_tokens[rows] -= 1
                for row in rows:
                    sequences.state.restart(row)
                sequences.propose(rows, proposed)
        output = output + proposed[:held]
        sequences.table.num_tokens[rows] = len(PROMPT) + len(output)


@settings(deadline=None)
@given(words=words_of_requests, before=few_tokens, parent=few_tokens, child=few_tokens)
def test_forks_go_on_alone(words, before, parent, child):
    sequences = Sequences()
    rows = [sequences.add("parent", words[0], before)]
    sequences.forbidden(rows, [len(before)])
    rows.append(sequences.fork("parent", "child"))
    outputs = [before + parent, before + child]
    for _ in range(2):
        for row, output in zip(rows, outputs, strict=True):
            sequences.table.num_tokens[row] = len(PROMPT) + len(before)
            sequences.propose([row], output[len(before) :])
            sequences.table.num_tokens[row] = len(PROMPT) + len(output)
        assert sequences.forbidden(rows, list(map(len, outputs))) == [
            compared(words[0], output) for output in outputs
        ]


def test_a_step_costs_the_same_with_a_thousand_words():
    """Each was compared in Python for each row: 60 requests with 1,024 words never ended."""
    output = [7] * 500
    lines = []
    for words in ([[7, 8]], [[7] * k + [8] for k in range(1, 1025)]):
        sequences = Sequences()
        rows = [sequences.add(str(i), words, output) for i in range(60)]
        counts = [len(output)] * len(rows)
        found: list[set[int]] = []
        lines.append(lines_run(lambda: found.extend(sequences.forbidden(rows, counts))))  # noqa: B023
        assert found == [{8}] * len(rows)
    assert lines[0] == lines[1]

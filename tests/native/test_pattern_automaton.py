"""The pattern automaton against comparing every pattern at every place, and its bounds."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels.cpu.native import native

SYMBOLS = st.integers(0, 2)
PATTERNS = st.lists(st.lists(SYMBOLS, min_size=1, max_size=6), min_size=1, max_size=8)


def automaton(patterns: list[list[int]]) -> object:
    symbols = array("i", [symbol for pattern in patterns for symbol in pattern] + [0])
    lengths = array("q", map(len, patterns))
    starts = array("q", accumulate(lengths, initial=0))
    return native.PatternAutomaton(symbols, len(symbols), starts, lengths, len(patterns))


def search(made, state, text, stops=True):
    return made.search(state, array("i", text), len(text), stops)


@given(patterns=PATTERNS, text=st.lists(SYMBOLS, max_size=40), stops=st.booleans())
def test_the_first_pattern_to_end_is_found_and_open_symbols_are_counted(patterns, text, stops):
    made, state = automaton(patterns), 0
    for end in range(1, len(text) + 1):
        read = text[:end]
        ended = [i for i, p in enumerate(patterns) if read[-len(p) :] == p]
        state, num_read, found, num_open = search(made, state, text[end - 1 : end], stops)
        assert num_read == 1
        if ended and stops:
            assert found == ended[0]
            return
        proper = [k for p in patterns for k in range(len(p)) if read[len(read) - k :] == p[:k]]
        assert (found, num_open) == (-1, max(proper))
    assert search(made, 0, text, stops)[1] == len(text)


@given(patterns=PATTERNS, texts=st.lists(st.lists(SYMBOLS, max_size=30), max_size=4))
def test_states_are_those_that_texts_come_to(patterns, texts):
    made = automaton(patterns)
    for text in texts:
        search(made, 0, text, stops=False)
    beginnings = {tuple(p[:k]) for p in patterns for k in range(len(p) + 1)}
    assert made.num_states() <= len(beginnings)


def test_long_patterns_cost_what_is_read_of_them():
    patterns = [[7] * 20_000 + [i] for i in range(200)]
    made = automaton(patterns)
    assert search(made, 0, [7] * 100, stops=False)[3] == 100
    assert made.num_states() == 101


@pytest.mark.parametrize("high", [2**31 - 1, -(2**31)])
def test_any_32_bits_are_a_symbol(high):
    made = automaton([[high, 0, high], [0, high]])
    assert search(made, 0, [high, high, 0, high]) == (search(made, 0, [high, 0, high])[0], 4, 0, 0)


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([0], [4]), ([0], [0]), ([0], [-1]), ([-1], [2]), ([5], [1]), ([2**62], [2**62]), ([], [])],
)
def test_patterns_must_be_among_the_symbols(starts, lengths):
    arrays = array("i", [1, 2, 3, 0]), 4, array("q", starts), array("q", lengths), len(starts)
    with pytest.raises(ValueError, match=r"^\[patterns\]"):
        native.PatternAutomaton(*arrays)


@pytest.mark.parametrize("state", [-1, 1, 2**31 - 1])
def test_a_state_must_have_been_returned(state):
    with pytest.raises(ValueError, match=r"^\[patterns\] a state must be"):
        search(automaton([[1, 2]]), state, [1])


@pytest.mark.parametrize(
    ("row", "start", "known", "length"),
    [(1, 0, 1, 1), (-1, 0, 1, 1), (0, 2, 1, 2), (0, 2, 2, 1), (0, -1, 1, 1), (0, 0, 1, 4)],
)
def test_rows_must_have_an_output_in_the_table(row, start, known, length):
    made = native.BadWordsRow(automaton([[1]]))
    numbers = [array("i", [number]) for number in (row, start, known, length)]
    with pytest.raises(ValueError, match=r"^\[(bad_words|native)\]"):
        native.forbidden_tokens([made], array("i", [1, 2, 3]), 3, *numbers, array("q", [0]))

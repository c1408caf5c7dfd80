"""The suffix automaton against comparing every suffix with every place, and its bounds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.kernels.cpu.native import native
from tests.speculative.drafters.ngram_oracle import last_repeat

#: Every text of a few letters is adversarial to something: runs, periods, no repetition.
TEXTS = st.integers(1, 5).flatmap(lambda n: st.lists(st.integers(0, n), min_size=1, max_size=80))


def fibonacci_word(size: int) -> list[int]:
    """Return a text that repeats itself everywhere, and has no period."""
    shorter, longer = [0], [0, 1]
    while len(longer) < size:
        shorter, longer = longer, longer + shorter
    return longer[:size]


def de_bruijn(letters: int, length: int) -> list[int]:
    """Return a text in which each word of ``length`` letters occurs once."""
    text = [0] * length
    words = {tuple(text)}
    while True:
        for letter in reversed(range(letters)):
            word = (*text[len(text) - length + 1 :], letter)
            if word not in words:
                words.add(word)
                text.append(letter)
                break
        else:
            return text


def long_texts() -> dict[str, list[int]]:
    """Return texts of some thousand tokens that are hard in different ways."""
    rng = random.Random(1)
    size = 4096
    words = [[rng.randrange(3) for _ in range(rng.randint(1, 9))] for _ in range(8)]
    return {
        "one token": [7] * size,
        "a run and its end": ([1] * 255 + [2]) * (size // 256),
        "a period": list(range(100)) * (size // 100),
        "two letters": [rng.randrange(2) for _ in range(size)],
        "no repetition": list(range(size)),
        "any tokens": [rng.randrange(1 << 31) for _ in range(size)],
        "words": [letter for _ in range(size // 5) for letter in rng.choice(words)],
        "a fibonacci word": fibonacci_word(size),
        "a de bruijn word": de_bruijn(2, 12),
        "a text twice": [rng.randrange(50) for _ in range(size // 2)] * 2,
    }


LONG_TEXTS = long_texts()


@given(text=TEXTS, longest=st.integers(1, 90))
def test_the_last_repeat_of_the_longest_suffix_is_found(text: list[int], longest: int) -> None:
    automaton = native.SuffixAutomaton(longest)
    for i, token in enumerate(text):
        assert automaton.extend(token) == last_repeat(text[: i + 1], longest)


@pytest.mark.parametrize("longest", [1, 32])
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_texts_are_followed(name: str, longest: int) -> None:
    """A quadratic oracle is too slow at every place: it is asked at the end of some."""
    text, automaton = LONG_TEXTS[name][:1500], native.SuffixAutomaton(longest)
    for i, token in enumerate(text):
        found = automaton.extend(token)
        if i % 97 == 0 or i + 3 > len(text):
            assert found == last_repeat(text[: i + 1], longest)


@pytest.mark.parametrize("longest", [5, 32, 256])
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_work_and_memory_grow_with_the_text_alone(name: str, longest: int) -> None:
    text, automaton = LONG_TEXTS[name], native.SuffixAutomaton(longest)
    for i, token in enumerate(text, 1):
        automaton.extend(token)
        assert automaton.num_operations() <= (20 + longest) * i
        assert automaton.bytes() <= 2 * 80 * i + 256


def test_the_largest_token_ids_are_tokens_like_others() -> None:
    automaton = native.SuffixAutomaton(8)
    high = 2**31 - 1
    found = [automaton.extend(token) for token in (high, 0, high, 0)]
    assert found == [(0, -1), (0, -1), (1, 0), (2, 1)]

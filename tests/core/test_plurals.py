"""Counts with their nouns."""

from __future__ import annotations

import pytest

from quire.core.plurals import counted


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, ("stage",), "1 stage"),
        (0, ("stage",), "0 stages"),
        (2, ("matrix", "matrices"), "2 matrices"),
        (1, ("matrix", "matrices"), "1 matrix"),
        (1100, ("token",), "1,100 tokens"),
    ],
)
def test_the_noun_has_the_form_that_its_number_asks_for(
    number: int, words: tuple[str, ...], said: str
) -> None:
    assert counted(number, *words) == said

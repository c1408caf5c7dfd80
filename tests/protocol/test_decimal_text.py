"""Numbers in text: their digits, their limit."""

from __future__ import annotations

import pytest

from quire.protocol.decimal_text import read_decimal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("000", 0),
        ("0100", 100),
        ("100", 100),
        ("0" * 10_000 + "7", 7),
        ("101", None),
        ("9" * 10_000, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1_0", None),
        (" 1", None),
        ("1.0", None),
        ("\u0663", None),
        ("\xb2", None),
    ],
)
def test_what_is_a_number(text, number):
    assert read_decimal(text, 100) == number

"""Wrong values in messages."""

from __future__ import annotations

import pytest

from quire.core.quoting import quoted


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, -2.5, "", "a'b", "é\n", b"x", [], [1, "a", None], {}, {"a": [1, {"b": []}]},
        {1: 2}, (1, 2), "x" * 200, ["y" * 30] * 9, [[[[1]]]], {str(i): [i] for i in range(40)},
    ],
)  # fmt: skip
def test_it_is_the_beginning_of_the_repr(value):
    assert quoted(value) == repr(value)[:80]
    assert quoted(value, 5) == repr(value)[:5]


def test_a_list_of_millions_is_not_read_to_its_end():
    """An error quoted 80 characters of a ``repr`` that took a tenth of a second of all clients."""
    taken = []

    class Item:
        def __repr__(self) -> str:
            taken.append(self)
            return "item"

    assert len(quoted([Item() for _ in range(1000)])) == 80
    assert len(taken) < 20
    assert quoted("x" * 10**6) == "'" + "x" * 79
    nested: list[object] = []
    for _ in range(500):
        nested = [nested]
    assert quoted(nested) == "[" * 80

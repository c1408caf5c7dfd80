"""The rows that the small circles run cover what they promise, and are the same each time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.covering import MAX_PAIRED_VALUES, cover

THREE = [dict(zip("abc", row, strict=True)) for row in product(range(3), "xyz", [True, False])]


def pairs(rows: list[dict[str, Any]]) -> set[Any]:
    """Return all pairs of values of different parameters, and all values."""
    found: set[Any] = {item for row in rows for item in row.items()}
    return found | {pair for row in rows for pair in combinations(row.items(), 2)}


def test_pairs_of_small_parameters_are_all_there():
    kept = [THREE[number] for number in cover("a test", THREE)]
    assert pairs(kept) == pairs(THREE)
    assert len(kept) < len(THREE)


def test_it_is_the_same_each_time_and_differs_from_test_to_test():
    assert cover("one", THREE) == cover("one", THREE)
    assert len({tuple(cover(f"test {number}", THREE)) for number in range(9)}) > 1


def test_a_table_of_cases_is_there_once_each():
    many = range(MAX_PAIRED_VALUES + 1)
    rows = [{"case": case, "threads": threads} for case, threads in product(many, [1, 2])]
    kept = [rows[number] for number in cover("a test", rows)]
    assert sorted(row["case"] for row in kept) == list(many)
    # Neither number of threads is left to a case or two.
    assert abs(sum(1 if row["threads"] == 1 else -1 for row in kept)) <= 1


def test_an_unpaired_parameter_is_there_once_each():
    rows = [{"isa": isa, "size": size} for isa, size in product("abcd", range(4))]
    kept = cover("a test", rows, frozenset({"isa"}))
    assert len(kept) == 4
    assert {rows[number]["isa"] for number in kept} == set("abcd")
    assert {rows[number]["size"] for number in kept} == set(range(4))


@dataclass
class Case:
    """Two choices that a parameter hides; unhashable, as dataclasses are by default."""

    bits: int
    causal: bool


@pytest.mark.parametrize("make", [Case, lambda *values: values], ids=["dataclass", "tuple"])
def test_fields_of_a_value_are_paired_with_other_parameters(make):
    rows = [
        {"case": make(bits, causal), "dtype": dtype, "plain": (bits, causal)}
        for bits, causal, dtype in product(range(5), [True, False], "ab")
    ]
    given = [{"case": row["case"], "dtype": row["dtype"]} for row in rows]
    kept = [rows[number] for number in cover("a test", given)]
    assert len(kept) < len(rows)
    assert {(row["plain"][0], row["dtype"]) for row in kept} == set(product(range(5), "ab"))
    assert {(row["plain"][1], row["dtype"]) for row in kept} == set(product([True, False], "ab"))


def test_values_that_compare_equal_are_not_one():
    rows = [{"value": value} for value in (1, 1.0, True)]
    assert cover("a test", rows) == [0, 1, 2]


@given(st.lists(st.fixed_dictionaries({name: st.integers(0, 3) for name in "abcd"}), min_size=1))
def test_any_rows(rows):
    """Not whole products alone: what no row has cannot be covered, all else is."""
    kept = cover("a test", rows)
    assert kept == sorted(set(kept))
    assert pairs([rows[number] for number in kept]) == pairs(rows)


def test_arrays_that_print_alike_are_several_values() -> None:
    arrays = [np.zeros(9999), np.zeros(9999), np.zeros(9999), np.array(np.nan), np.array(-np.nan)]
    arrays[1][5000] = 1
    assert len(cover("t", [{"array": {"of": array}} for array in arrays])) == 4

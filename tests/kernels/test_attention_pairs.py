"""Attention over a bfloat16 cache by dot products of pairs: the defined bits, in every grouping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.attention_cases import SHAPES, Case, Tables
from tests.kernels.attention_runs import random_qkv, run_cpu
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.paired_attention import PAIR_ISAS, simulate
from tests.sizes import sized

ISAS = [isa for isa in ALL_ISAS if isa in PAIR_ISAS]
if not ISAS:
    pytest.skip("no dot products of bfloat16", allow_module_level=True)
#: A soft cap's tanh has other last bits in numpy, and with them other weights.
SIMULATED = [name for name, case in SHAPES.items() if not case.rotary_dim and not case.score_cap]
LENS = [1, 17, 256, 300]
#: Of each request, the last ones: those that see most.
SIMULATED_ROWS = sized(50, 300)
WIDE = [
    Case(num_heads=group, num_kv_heads=1, head_dim=head_dim, window=window)
    for group, head_dim, window in [
        (1, 64, None),
        (2, 1, 7),
        (3, 33, None),
        (4, 80, 40),
        (5, 64, None),
        (6, 24, 31),
        (7, 128, None),
        (8, 96, 256),
    ]
]


def brain_case(case: Case, block_size: int = 16) -> Case:
    return replace(case, dtype="bfloat16", block_size=block_size)


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize("shape", SIMULATED)
def test_rows_are_what_the_definition_gives(isa: str, shape: str, block_size: int) -> None:
    """Prefilled, and the last 3 tokens decoded; a weight rounded the other way would show."""
    case = brain_case(SHAPES[shape], block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    steps = [[(row, 0, max(1, length - 3)) for row, length in enumerate(LENS)]]
    long = [(row, length) for row, length in enumerate(LENS) if length > 3]
    steps += [[(row, n - left, n - left + 1) for row, n in long] for left in (3, 2, 1)]
    for got, rows in zip(run_cpu(case, tables, qkv, steps), qkv, strict=True):
        want = simulate(case, rows, isa, SIMULATED_ROWS)
        np.testing.assert_allclose(got[-len(want) :], want, atol=2e-6, rtol=0)


@pytest.mark.parametrize("case", WIDE, ids=lambda case: f"{case.num_heads} of {case.head_dim}")
def test_bits_do_not_depend_on_chunks_groups_or_blocks(isa: str, case: Case) -> None:
    """Odd and even head dims and windows; tokens one by one, in odd chunks, next to others."""
    case = brain_case(case)
    lens = [45, 301]
    qkv = random_qkv(case, lens)
    want = run_cpu(case, Tables(case, lens), qkv, [[(0, 0, 45), (1, 0, 301)]])
    one_by_one = [[(0, p, p + 1)] for p in range(45)]
    chunks = [[(1, p, min(301, p + 37))] for p in range(0, 301, 37)]
    mixed = [[(1, 0, 254), (0, 0, 8)], [(0, 8, 9), (1, 254, 257)], [(0, 9, 45), (1, 257, 301)]]
    for block_size in (16, 1, 5, 48):
        sized = brain_case(case, block_size)
        tables = Tables(sized, lens, block_size)
        for steps in (one_by_one + chunks, mixed):
            for got, rows in zip(run_cpu(sized, tables, qkv, steps), want, strict=True):
                np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [12, 13])
@pytest.mark.parametrize("window", [None, 3, 4])
def test_a_token_that_is_not_finite_reaches_no_row_that_does_not_see_it(
    isa: str, window: int | None, at: int, bad: float
) -> None:
    """Its pair's other position is seen by the row before, and by the last row of a window."""
    case = brain_case(Case(num_heads=4, num_kv_heads=1, window=window))
    tables, (clean,) = Tables(case, [24]), random_qkv(case, [24])
    spoiled = clean.copy()
    spoiled[at] = bad
    whole, one_by_one = [[(0, 0, 24)]], [[(0, p, p + 1)] for p in range(24)]
    want = run_cpu(case, tables, [clean], whole)[0]
    sees = np.arange(24) >= at
    if window is not None:
        sees &= np.arange(24) < at + window
    for steps in (whole, one_by_one):
        got = run_cpu(case, tables, [spoiled], steps)[0]
        np.testing.assert_array_equal(got[~sees], want[~sees])
        assert not np.isfinite(got[sees]).any()


def test_equal_values_are_kept(isa: str) -> None:
    """The weights' total is that of the rounded ones: a mean of equal values is that value."""
    case = brain_case(Case(num_heads=4, num_kv_heads=1, head_dim=64))
    tables, qkv = Tables(case, [700]), random_qkv(case, [700])
    qkv[0][:, -64:] = np.float32(3.140625)
    got = run_cpu(case, tables, qkv, [[(0, 0, 700)]])[0]
    np.testing.assert_allclose(got, 3.140625, rtol=1e-6)

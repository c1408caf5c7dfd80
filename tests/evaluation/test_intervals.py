"""Intervals against tables, literal formulas, a plain bootstrap and what they promise."""

import math
import random
import statistics

import pytest

from quire.evaluation.intervals import (
    Estimate,
    mean_interval,
    paired_difference,
    share_interval,
    t_quantile,
    wilson_interval,
)

#: Two-sided 95%, as printed in every table of Student's distribution.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045, 30: 2.042,
         100: 1.984, 1000: 1.962, 10**6: 1.960}  # fmt: skip


@pytest.mark.parametrize("degrees", TABLE)
def test_quantiles_are_those_of_the_table(degrees):
    assert t_quantile(degrees) == pytest.approx(TABLE[degrees], abs=6e-4)


def test_equal_windows_have_the_textbook_interval():
    means = [1.0, 1.5, 0.7, 2.1, 1.2]
    found = mean_interval([10 * mean for mean in means], [10] * 5)
    half = TABLE[4] * statistics.stdev(means) / math.sqrt(5)
    assert found.value == pytest.approx(statistics.mean(means))
    assert found.low == pytest.approx(found.value - half, rel=1e-3)
    assert found.high == pytest.approx(found.value + half, rel=1e-3)


def bootstrap(draw, windows, times=2000):
    """The 2.5% and 97.5% quantiles of a statistic of windows drawn with replacement."""
    rng = random.Random(3)
    found = sorted(draw(rng.choices(windows, k=len(windows))) for _ in range(times))
    return found[times // 40], found[-times // 40 - 1]


def ratio(windows):
    return sum(total for total, _ in windows) / sum(count for _, count in windows)


def unequal_windows(count, rng):
    """Sums and counts of windows, whose means differ more than their tokens' do."""
    sizes = [rng.randint(20, 500) for _ in range(count)]
    return [(size * rng.gammavariate(4, 0.4), size) for size in sizes]


def test_the_interval_of_a_mean_is_the_bootstrap_s():
    windows = unequal_windows(80, random.Random(1))
    found, (low, high) = mean_interval(*zip(*windows, strict=True)), bootstrap(ratio, windows)
    assert found.value == pytest.approx(ratio(windows))
    assert found.high - found.low == pytest.approx(high - low, rel=0.15)
    assert found.low == pytest.approx(low, abs=0.15 * (high - low))


def test_a_paired_interval_is_the_bootstrap_s():
    rng = random.Random(2)
    pairs = [rng.choices([(1, 1), (1, 0), (0, 1), (0, 0)], (60, 12, 6, 22))[0] for _ in range(300)]
    found = paired_difference(pairs.count((1, 0)), pairs.count((0, 1)), len(pairs))
    low, high = bootstrap(lambda drawn: statistics.mean(a - b for a, b in drawn), pairs)
    assert found.value == statistics.mean(a - b for a, b in pairs)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)


@pytest.mark.parametrize("count", [3, 10])
def test_19_of_20_intervals_hold_the_mean(count):
    rng, held = random.Random(count), 0
    for _ in range(2000):
        sums = [100 * rng.gauss(1.5, 0.3) for _ in range(count)]
        found = mean_interval(sums, [100] * count)
        held += found.low <= 1.5 <= found.high
    assert 0.935 < held / 2000 < 0.965


def test_one_window_has_no_interval():
    assert mean_interval([3.0], [2]) == Estimate(1.5)
    assert share_interval([1], [2]) == Estimate(0.5)
    assert Estimate(1.5).map(math.exp) == Estimate(math.exp(1.5))


def test_an_estimate_keeps_its_interval_when_it_is_mapped_and_clipped():
    found = Estimate(0.5, -0.1, 1.1)
    assert found.map(math.exp) == Estimate(math.exp(0.5), math.exp(-0.1), math.exp(1.1))
    assert found.clipped(0.0) == Estimate(0.5, 0.0, 1.1)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_wilson_s_interval(hits, total, low, high):
    found = wilson_interval(hits, total)
    assert found.value == hits / total
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_wilson_s_interval_solves_its_equation():
    """Its ends are the shares whose own deviation puts what was seen at the quantile."""
    found = wilson_interval(37, 60)
    for end in (found.low, found.high):
        assert abs(37 / 60 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 60))


def test_a_share_counts_windows_and_not_tokens():
    # Tokens of a window are all alike: 20 windows are worth 20 tokens, not 2,000.
    hits = [100 if number % 2 else 0 for number in range(20)]
    clustered, tokens = share_interval(hits, [100] * 20), wilson_interval(1000, 2000)
    assert clustered.value == tokens.value == 0.5
    assert 9 < (clustered.high - clustered.low) / (tokens.high - tokens.low) < 12


def test_a_share_of_all_has_an_interval_below_one():
    found = share_interval([100] * 5, [100] * 5)
    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.98 < found.low < 1.0


def test_a_large_paired_difference_has_the_interval_of_its_formula():
    """40 and 2 of 60, half a trial added to each: 38 / 62 and 1.96 * sqrt(43 - 38**2 / 62) / 62."""
    found = paired_difference(40, 2, 60)
    assert found.value == pytest.approx(38 / 60)
    assert (found.low, found.high) == pytest.approx((0.47256, 0.75325), abs=1e-4)


def test_no_difference_has_an_interval_around_zero():
    found = paired_difference(0, 0, 50)
    assert found.value == 0
    assert found.low == -found.high
    assert 0.02 < found.high < 0.06

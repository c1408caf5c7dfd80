"""How many known tokens a drafter computes at once, by seconds that are told."""

from __future__ import annotations

import numpy as np
import pytest

from quire.speculative.drafters.draft_prefill import (
    FIRST_TOKENS,
    LEAST_TOKENS,
    MOST_PAIRS,
    MOST_TOKENS,
    DraftPrefill,
    most_tokens,
)


def told(*steps: float, per_token: float = 1e-4, tokens: int = 200) -> DraftPrefill:
    """Return one that knows a batch of the drafter's and steps of the target."""
    catch_up = DraftPrefill()
    catch_up.computed(tokens, per_token * tokens)
    for seconds in steps:
        catch_up.step_took(seconds)
    return catch_up


def test_before_anything_is_measured():
    assert DraftPrefill().num_tokens() == FIRST_TOKENS
    assert told().num_tokens() == FIRST_TOKENS
    unmeasured = DraftPrefill()
    unmeasured.step_took(1.0)
    assert unmeasured.num_tokens() == FIRST_TOKENS
    assert DraftPrefill(100).num_tokens() == 100


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [(0.02, 200), (0.06, 600), (0.001, LEAST_TOKENS), (9.0, MOST_TOKENS), (0.0, LEAST_TOKENS)],
)
def test_it_takes_as_long_as_the_target_s_step(seconds, tokens):
    assert told(seconds, seconds).num_tokens() == pytest.approx(tokens, abs=1)


def test_a_step_with_a_prompt_says_nothing_of_the_next():
    assert told(0.02, 5.0).num_tokens() == pytest.approx(200, abs=1)
    assert told(5.0, 0.02).num_tokens() == pytest.approx(200, abs=1)
    assert told(0.02, 0.06, 0.06).num_tokens() == pytest.approx(600, abs=1)


def test_what_a_token_takes_is_followed():
    catch_up = told(0.02)
    for _ in range(30):
        catch_up.computed(200, 200 * 2e-4)
    assert catch_up.num_tokens() == pytest.approx(100, abs=1)


def test_small_batches_say_nothing_of_large_ones():
    catch_up = told(0.02)
    for _ in range(30):
        catch_up.computed(1, 0.01)  # all weights for one token
    assert catch_up.num_tokens() == pytest.approx(200, abs=1)


def test_rows_that_keep_up_get_all_and_the_others_share_the_rest():
    catch_up = told(0.01)  # 100 tokens
    wanted = np.array([2, 300, 16, 5, 80], np.int32)
    assert catch_up.share(wanted).tolist() == [2, 20, 16, 5, 80]
    many = np.array([3] * 200 + [400], np.int32)
    assert catch_up.share(many).tolist() == [3] * 200 + [100]
    few = np.array([1, 1], np.int32)
    assert catch_up.share(few).tolist() == [1, 1]


@pytest.mark.parametrize("limit", [64, 70, 1024])
def test_there_is_room_for_what_is_computed(limit):
    catch_up = DraftPrefill(limit)
    catch_up.computed(100, 1e-6)
    catch_up.step_took(1.0)
    rng = np.random.default_rng(limit)
    for _ in range(200):
        wanted = rng.integers(1, 2000, rng.integers(1, 90)) // rng.choice([1, 100, 2000])
        shares = catch_up.share(wanted.astype(np.int32))
        assert shares.sum() == min(wanted.sum(), limit)
        assert (shares >= 0).all() and (shares <= wanted).all()


@pytest.mark.parametrize(("budget", "most"), [(24, 64), (100, 100), (2048, 1024)])
def test_buffers_are_no_larger_than_the_target_s(budget, most):
    assert most_tokens(budget) == most
    assert most_tokens(budget, MOST_PAIRS) == min(most, MOST_PAIRS)

"""Grammars follow proposed tokens in other threads, return, and fail no request by it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from quire.core.sampling_params import SamplingParams
from quire.runner.step import row_grammars
from tests.runner.step.scripted_grammars import (
    ANY,
    EOS,
    FORCES_NEXT,
    LIMIT,
    VOCAB,
    Rows,
    ScriptedMatcher,
    wait_for_all_but_the_held,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars that do not wait for a gate are done in time on any machine."""
    monkeypatch.setattr(row_grammars, "wait", wait_for_all_but_the_held)
    monkeypatch.setattr("quire.runner.step.grammar_lookahead.SLOW_SECONDS", 5.0)
    monkeypatch.setattr("quire.runner.step.row_grammars.SLOW_SECONDS", 5.0)


def begun(count: int) -> Rows:
    """Return rows that have drawn a token each."""
    rows = Rows(count)
    rows.draw(*[ANY] * count)
    rows.wait()
    return rows


def masks(rows: Rows, row: int, num_followed: int) -> list[int]:
    """Return the masks with which a row draws its next token and those after proposed ones."""
    count = num_followed + 1
    lengths = rows.table.num_tokens[row] + np.arange(count)
    batch = rows.state.batch(np.full(count, row, np.int32), lengths)
    found = [batch.mask_words[i] for i in batch.mask_rows.tolist()]
    return [int.from_bytes(one.tobytes(), "little") for one in found]


def is_back(matcher: ScriptedMatcher, *seen: int) -> bool:
    return matcher.seen == list(seen) and matcher.num_taken == len(seen)


EVERYTHING = 2**VOCAB - 1


def test_each_proposed_token_has_its_mask_and_the_matcher_is_back() -> None:
    rows = begun(2)
    assert rows.propose([1, FORCES_NEXT, FORCES_NEXT + 1], [2]) == [3, 1]
    one, other = rows.rows
    only = [1 << (FORCES_NEXT + 1), 1 << (FORCES_NEXT + 2)]
    assert masks(rows, one, 3) == [EVERYTHING, EVERYTHING, *only]
    assert masks(rows, other, 1) == [EVERYTHING, EVERYTHING]
    assert all(is_back(matcher, ANY) for matcher in rows.matchers)
    assert {name for m in rows.matchers for name in m.threads} == {"quire-masks"}
    rows.draw(1, 2)  # what was drawn is followed as ever
    rows.wait()
    assert [m.seen for m in rows.matchers] == [[ANY, 1], [ANY, 2]]


@pytest.mark.parametrize(
    ("proposed", "followed"),
    [
        ([FORCES_NEXT, FORCES_NEXT + 2, 1], 1),  # forbidden after the first one
        ([1, EOS, 1], 1),  # ends the sequence
        ([1, VOCAB + 5, 1], 1),  # no token of the model
    ],
)
def test_it_ends_before_what_cannot_be(proposed: list[int], followed: int) -> None:
    rows = begun(1)
    assert rows.propose(proposed) == [followed]
    assert is_back(rows.matchers[0], ANY)


def test_one_that_waits_holds_up_its_own_row_alone() -> None:
    rows = begun(2)
    slow, quick = rows.matchers
    slow.gate.clear()
    assert rows.propose([1, 2, 3], [1, 2, 3]) == [0, 3]
    assert rows.state.grammars.unready_rows() == []  # each draws in this step
    assert masks(rows, rows.rows[0], 0) == [EVERYTHING]
    assert len(masks(rows, rows.rows[1], 3)) == 4
    assert (
        "finite" in rows.state.failure(rows.rows[0]).message
    )  # its grammar is not asked meanwhile
    rows.draw(4, 4)
    rows.draw(*[], num_others=0)
    assert rows.state.grammars.unready_rows() == [rows.rows[0]]
    assert quick.seen == [ANY, 4]
    slow.gate.set()
    rows.wait()
    assert slow.seen == [ANY, 4], "it ended after the token it was at, and then followed the draw"
    assert threading.main_thread().name not in slow.threads
    assert slow.threads.count("quire-masks") == 3  # the first draw, a proposed token, the second
    rows.state.grammars.close()


def test_one_that_was_slow_gets_no_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = begun(1)
    monkeypatch.setattr("quire.runner.step.grammar_lookahead.SLOW_SECONDS", -1.0)
    monkeypatch.setattr("quire.runner.step.row_grammars.SLOW_SECONDS", -1.0)
    assert rows.propose([1, 2, 3]) == [0]
    assert is_back(rows.matchers[0], ANY)
    rows.draw(1)
    assert rows.state._rules[rows.rows[0]].is_slow
    rows.wait()
    assert not rows.state.grammars.can_follow_proposals(rows.rows[0])


@pytest.mark.parametrize("failing", [None, RuntimeError("a panic"), BaseException("a panic")])
def test_what_fails_after_proposed_tokens_fails_no_request(failing: BaseException | None) -> None:
    rows = begun(1)
    (row,) = rows.rows
    rows.matchers[0].budget, rows.matchers[0].failing = 1, failing
    assert rows.propose([1, 2, 3]) == [1 if failing is None else 0]
    assert len(rows.matchers) == 2, "there is another one before anything is drawn"
    assert masks(rows, row, 0) == [EVERYTHING]
    assert rows.draw(FORCES_NEXT)[0][0] == FORCES_NEXT + 1
    rows.wait()
    assert rows.matchers[1].seen[:2] == [ANY, FORCES_NEXT]
    assert set(rows.matchers[1].threads) == {"quire-masks"}
    assert not rows.matchers[1].error


def test_limits_that_proposed_tokens_have_used_up_fail_no_request() -> None:
    rows = begun(1)
    rows.matchers[0].budget = 3
    assert rows.propose([1, 2, 3]) == [3]
    rows.draw(4)
    rows.wait()
    assert rows.matchers[0].error == LIMIT
    assert masks(rows, rows.rows[0], 0) == [EVERYTHING]
    assert is_back(rows.matchers[1], ANY, 4)


def test_a_limit_of_what_is_known_fails_the_request() -> None:
    rows = begun(1)
    rows.matchers[0].budget = 0
    rows.draw(4)
    rows.wait()
    assert masks(rows, rows.rows[0], 0) == [0]
    assert rows.state.failure(rows.rows[0]) == LIMIT
    assert not rows.state.grammars.can_follow_proposals(rows.rows[0])


def test_a_matcher_that_cannot_be_made_again_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = begun(2)
    rows.matchers[0].budget = 0

    def fail(constraint: object) -> ScriptedMatcher:
        raise MemoryError

    monkeypatch.setattr(rows, "create_matcher", fail)
    assert rows.propose([1], [1]) == [0, 1]
    rows.draw(1, 1)
    rows.wait()
    assert "MemoryError" in rows.state.failure(rows.rows[0]).message
    assert masks(rows, rows.rows[1], 0) == [EVERYTHING]


def test_a_step_that_failed_leaves_a_matcher_at_work_behind() -> None:
    rows = begun(1)
    old = rows.matchers[0]
    old.gate.clear()
    assert rows.propose([1, 2]) == [0]
    rows.state.restart(rows.rows[0])
    assert not rows.state.grammars.can_follow_proposals(rows.rows[0])  # its mask is not at hand
    assert masks(rows, rows.rows[0], 0) == [EVERYTHING]
    assert is_back(rows.matchers[1], ANY)
    assert rows.propose([1]) == [1]
    old.gate.set()
    rows.draw(1)
    rows.wait()
    assert is_back(rows.matchers[1], ANY, 1)


def test_a_row_given_to_another_request_waits_for_no_lookahead() -> None:
    rows = begun(1)
    rows.matchers[0].gate.clear()
    rows.propose([1, 2])
    rows.draw(1)
    assert rows.state.grammars.unready_rows() == rows.rows
    rows.table.remove("0")
    rows.state.set(rows.table.add("next", [3], 1), SamplingParams(), 0)
    assert rows.state.grammars.unready_rows() == []
    rows.matchers[0].gate.set()


def test_drafts_have_no_mask_after_proposed_tokens() -> None:
    rows = begun(1)
    row, length = rows.rows[0], int(rows.table.num_tokens[rows.rows[0]])
    batch = rows.state.draft_batch(np.array([row, row], np.int32), np.array([length, length + 1]))
    assert batch.mask_rows.tolist() == [0, -1]
    assert is_back(rows.matchers[0], ANY)
    assert rows.matchers[0].threads == ["quire-masks"]

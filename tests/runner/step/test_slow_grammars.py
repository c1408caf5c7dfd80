"""A grammar that takes long holds up its own row and no step."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.errors import FailureKind
from quire.core.sampling_params import SamplingParams
from quire.runner.step import jump_forward, row_grammars
from tests.runner.step.scripted_grammars import (
    ANY,
    FORCES_NEXT,
    Rows,
    wait_for_all_but_the_held,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars that do not wait for a gate are done in time on any machine."""
    monkeypatch.setattr(row_grammars, "wait", wait_for_all_but_the_held)
    monkeypatch.setattr(row_grammars, "SLOW_SECONDS", 0.5)


def test_a_slow_one_is_unready_and_the_others_are_not() -> None:
    rows = Rows(3)
    rows.matchers[2].gate.clear()
    rows.draw(ANY, ANY, ANY)
    assert rows.state.grammars.unready_rows() == [rows.rows[2]]
    rows.draw(ANY, ANY)  # a step without it
    assert rows.state.grammars.unready_rows() == [rows.rows[2]]
    rows.matchers[2].gate.set()
    rows.wait()
    assert [m.num_taken for m in rows.matchers] == [2, 2, 1]
    rows.state.grammars.close()


def test_tokens_are_forced_until_the_wait_ends() -> None:
    rows = Rows(1)
    forced = rows.draw(60)[0]
    assert forced == [61, 62, 63]  # up to the token that ends it
    assert rows.table.tokens(rows.rows[0]).tolist() == [1, 2, 60, 61, 62, 63]
    late = Rows(1)
    late.matchers[0].gate.clear()
    assert late.draw(FORCES_NEXT, num_others=1) == {0: []}
    late.matchers[0].gate.set()
    late.wait()
    # What is forced from now on is drawn: the table must hold what the grammar has seen.
    assert late.matchers[0].seen == [FORCES_NEXT]
    assert late.draw(FORCES_NEXT + 1)[0][:2] == [FORCES_NEXT + 2, FORCES_NEXT + 3]


def test_no_more_than_a_number_of_tokens_is_forced() -> None:
    rows = Rows(1)
    assert len(rows.draw(FORCES_NEXT)[0]) == jump_forward.MAX_FORCED_TOKENS


def test_a_slow_one_has_its_own_thread_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.runner.step.row_grammars.SLOW_SECONDS", -1.0)
    rows = Rows(2)
    rows.draw(ANY)
    rows.wait()
    rows.matchers[0].gate.clear()
    rows.draw(ANY, ANY)  # the first one is known to be slow, so no step waits for it
    assert rows.rows[0] in rows.state.grammars.unready_rows()
    rows.matchers[0].gate.set()
    rows.wait()


def test_what_takes_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jump_forward, "MAX_MASK_SECONDS", -1.0)
    rows = Rows(1)
    rows.draw(ANY)
    rows.wait()
    batch = rows.state.batch(np.array(rows.rows, np.int32), np.array([3]))
    assert not batch.mask_words.any()
    assert rows.state.failure(rows.rows[0]).kind is FailureKind.GRAMMAR_LIMIT


def test_a_library_that_fails_fails_its_row_alone() -> None:
    rows = Rows(2)
    rows.matchers[0].failing = RuntimeError("a panic")
    rows.draw(ANY, ANY)
    rows.wait()
    assert "a panic" in rows.state.failure(rows.rows[0]).message
    assert not rows.matchers[1].error


def test_a_row_that_is_given_to_another_request_is_ready() -> None:
    rows = Rows(1)
    rows.matchers[0].gate.clear()
    rows.draw(ANY)
    rows.table.remove("0")
    row = rows.table.add("next", [3], 1)
    assert row == rows.rows[0]
    rows.state.set(row, SamplingParams(), 0)
    assert rows.state.grammars.unready_rows() == []
    rows.matchers[0].gate.set()


@pytest.mark.parametrize("num_started", [0, 1])
def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, num_started: int) -> None:
    """The first refused advance used to leave a queue that no thread served."""
    healthy, results = threading.Thread.start, iter([True] * num_started)

    def start(self: threading.Thread) -> None:
        if not next(results, False):
            raise RuntimeError("can't start new thread")
        healthy(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    rows = Rows(2)
    if num_started == 0:
        with pytest.raises(RuntimeError, match="can't start"):
            rows.draw(ANY)
        monkeypatch.setattr(threading.Thread, "start", healthy)
        rows.state.restart(rows.rows[0])  # as the runner does after a failed step
    rows.draw(ANY, ANY)
    for advance in rows.state.grammars._advances.values():
        assert advance.finished.wait(20), "no thread serves it"
    assert rows.state.grammars.unready_rows() == []
    rows.state.grammars.close()


def test_a_resumed_row_is_unready_until_its_grammar_has_followed() -> None:
    """It used to follow all of the output, and to compute the mask, when the token was drawn."""
    rows = Rows(1)
    rows.new_ones_wait = True
    row = rows.resume([ANY] * 5)
    assert rows.state.grammars.unready_rows() == [row]
    rows.matchers[-1].gate.set()
    rows.wait()
    rows.state.batch(np.array([row], np.int32), np.array([7]))
    assert rows.matchers[-1].seen == [ANY] * 5
    assert rows.matchers[-1].threads == ["quire-masks"]
    rows.state.grammars.close()


def test_a_row_whose_step_failed_follows_at_once_and_stays_slow() -> None:
    rows = Rows(1)
    rows.draw(ANY)
    rows.wait()
    rules = rows.state._rules[rows.rows[0]]
    rules.is_slow = True
    rows.state.restart(rows.rows[0])
    assert rows.state.grammars.unready_rows() == []  # its step is computed again now
    assert rules.is_slow and rules.matcher is rows.matchers[1]
    rows.state.batch(np.array(rows.rows, np.int32), np.array([3]))
    assert rows.matchers[1].seen == [ANY]


def test_a_long_output_is_no_dear_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 3 * jump_forward.MAX_MASK_SECONDS])
    clock = SimpleNamespace(thread_time=lambda: next(ticks))
    monkeypatch.setattr(jump_forward, "time", clock)
    rows = Rows(1)
    row = rows.resume([ANY] * 5)
    rows.wait()
    assert not rows.matchers[-1].error
    assert rows.state._rules[row].is_slow


def test_without_a_thread_a_resumed_row_follows_when_its_token_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    rows = Rows(1)
    row = rows.resume([ANY] * 5)
    assert rows.state.grammars.unready_rows() == []
    rows.state.batch(np.array([row], np.int32), np.array([7]))
    assert rows.matchers[-1].seen == [ANY] * 5

"""A grammar that takes long holds up its own row and no step."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.errors import GRAMMAR_LIMIT
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.token_table import TokenTable
from quire.runner import jump_forward, mask_threads
from quire.runner.sampling_state import SamplingState

VOCAB, EOS = 64, 63
BACKEND = CpuBackend(threads=1)
ANY, FORCES_NEXT = 5, 7


class ScriptedMatcher:
    """Allows one token after :data:`FORCES_NEXT` and any after others; waits when told to.

    Attributes:
        gate: What following tokens waits for.
        threads: Those in which it has followed tokens.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[str] = []
        self.num_taken = 0
        self.error = ""
        self.seen: list[int] = []
        self.failing: BaseException | None = None

    def allowed(self, new_ids: list[int]) -> bytes:
        self.seen += new_ids
        self.num_taken += len(new_ids)
        if new_ids:
            self.threads.append(threading.current_thread().name)
            assert self.gate.wait(20)
            if self.failing is not None:
                raise self.failing
        if self.error:
            return bytes(VOCAB // 8)
        if self.seen and self.seen[-1] >= FORCES_NEXT:
            return (1 << (self.seen[-1] + 1)).to_bytes(VOCAB // 8, "little")
        return b"\xff" * (VOCAB // 8)

    def fail(self, reason: str) -> None:
        self.error = reason

    def rollback(self, num_tokens: int) -> None:
        del self.seen[len(self.seen) - num_tokens :]
        self.num_taken -= num_tokens


def params() -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputs(regex="x"))


class Rows:
    """Some rows with grammars in a table."""

    def __init__(self, count: int) -> None:
        self.matchers: list[ScriptedMatcher] = []
        self.new_ones_wait = False
        self.table = TokenTable(count, 4)
        self.state = SamplingState(self.table, [EOS], BACKEND, self)
        for i in range(count):
            row = self.table.add(str(i), [1, 2], 2)
            self.state.set(row, params(), i)
        self.rows = [self.table.rows[str(i)] for i in range(count)]

    def create_matcher(self, constraint: StructuredOutputs) -> ScriptedMatcher:
        self.matchers.append(ScriptedMatcher())
        if self.new_ones_wait:
            self.matchers[-1].gate.clear()
        return self.matchers[-1]

    def resume(self, output_ids: list[int]) -> int:
        """Have the first request come back after a preemption; return its row."""
        self.table.remove("0")
        row = self.table.add("0", [1, 2, *output_ids], 2)
        self.state.set(row, params(), 0)
        return row

    def draw(self, *tokens: int, num_others: int = 1) -> dict[int, list[int]]:
        """Have the first rows draw tokens; return the tokens forced by place."""
        rows = self.rows[: len(tokens)]
        self.table.append_tokens(np.array(rows, np.int32), np.array(tokens, np.int32))
        forced = self.state.advance(rows, num_others)
        return {self.rows.index(row): found for row, found in forced.items()}

    def wait(self) -> None:
        while self.state.unready_rows():
            self.state.wait_until_ready(20)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars that do not wait for a gate are done in time on any machine."""
    monkeypatch.setattr(mask_threads, "SECONDS_BESIDES", 0.5)
    monkeypatch.setattr(mask_threads, "SECONDS_ALONE", 0.5)


def test_a_slow_one_is_unready_and_the_others_are_not() -> None:
    rows = Rows(3)
    rows.matchers[2].gate.clear()
    rows.draw(ANY, ANY, ANY)
    assert rows.state.unready_rows() == [rows.rows[2]]
    rows.draw(ANY, ANY)  # a step without it
    assert rows.state.unready_rows() == [rows.rows[2]]
    rows.matchers[2].gate.set()
    rows.wait()
    assert [m.num_taken for m in rows.matchers] == [2, 2, 1]
    rows.state.close()


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
    monkeypatch.setattr("quire.runner.sampling_state.SLOW_SECONDS", -1.0)
    rows = Rows(2)
    rows.draw(ANY)
    rows.wait()
    rows.matchers[0].gate.clear()
    rows.draw(ANY, ANY)  # the first one is known to be slow, so nobody waits for it
    assert rows.rows[0] in rows.state.unready_rows()
    rows.matchers[0].gate.set()
    rows.wait()


def test_what_takes_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jump_forward, "MAX_MASK_SECONDS", -1.0)
    rows = Rows(1)
    rows.draw(ANY)
    rows.wait()
    batch = rows.state.batch(np.array(rows.rows, np.int32), np.array([3]))
    assert not batch.mask_words.any()
    assert rows.state.refusal(rows.rows[0]).startswith(GRAMMAR_LIMIT)


def test_a_library_that_fails_fails_its_row_alone() -> None:
    rows = Rows(2)
    rows.matchers[0].failing = RuntimeError("a panic")
    rows.draw(ANY, ANY)
    rows.wait()
    assert "a panic" in rows.state.refusal(rows.rows[0])
    assert not rows.matchers[1].error


def test_a_row_that_is_given_to_another_request_is_ready() -> None:
    rows = Rows(1)
    rows.matchers[0].gate.clear()
    rows.draw(ANY)
    rows.table.remove("0")
    row = rows.table.add("next", [3], 1)
    assert row == rows.rows[0]
    rows.state.set(row, SamplingParams(), 0)
    assert rows.state.unready_rows() == []
    rows.matchers[0].gate.set()


@pytest.mark.parametrize("num_started", [0, 1])
def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, num_started: int) -> None:
    """The first refused advance used to leave a queue that nobody served."""
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
        rows.state.restart(rows.rows[0], params())  # as the runner does after a failed step
    rows.draw(ANY, ANY)
    for advance in rows.state._advances.values():
        assert advance.finished.wait(20), "nobody serves it"
    assert rows.state.unready_rows() == []
    rows.state.close()


def test_a_resumed_row_is_unready_until_its_grammar_has_followed() -> None:
    """It used to follow all of the output, and to compute the mask, when the token was drawn."""
    rows = Rows(1)
    rows.new_ones_wait = True
    row = rows.resume([ANY] * 5)
    assert rows.state.unready_rows() == [row]
    rows.matchers[-1].gate.set()
    rows.wait()
    rows.state.batch(np.array([row], np.int32), np.array([7]))
    assert rows.matchers[-1].seen == [ANY] * 5
    assert rows.matchers[-1].threads == ["quire-masks"]
    rows.state.close()


def test_a_row_whose_step_failed_follows_at_once_and_stays_slow() -> None:
    rows = Rows(1)
    rows.draw(ANY)
    rows.wait()
    rules = rows.state._rules[rows.rows[0]]
    rules.is_slow = True
    rows.state.restart(rows.rows[0], params())
    assert rows.state.unready_rows() == []  # its step is computed again now
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
    assert rows.state.unready_rows() == []
    rows.state.batch(np.array([row], np.int32), np.array([7]))
    assert rows.matchers[-1].seen == [ANY] * 5

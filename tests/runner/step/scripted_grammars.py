"""Rows with grammars that do what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.errors import RequestFailure
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs, grammar_limit
from quire.kernels.batch.token_table import TokenTable
from quire.kernels.cpu.backend import CpuBackend
from quire.runner.step.mask_threads import wait
from quire.runner.step.sampling_state import SamplingState

VOCAB, EOS = 64, 63
BACKEND = CpuBackend(threads=1)
ANY, FORCES_NEXT = 5, 7
LIMIT = grammar_limit("stay within a limit")


class ScriptedMatcher:
    """Allows one token after :data:`FORCES_NEXT` and any after others; waits when told to.

    Attributes:
        gate: What following tokens waits for.
        is_held: Whether a computation waits for that now.
        threads: Those in which it has followed tokens.
        budget: Tokens that it can follow before it runs into a limit, which stays.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_held = False
        self.threads: list[str] = []
        self.num_taken = 0
        self.error: RequestFailure | None = None
        self.seen: list[int] = []
        self.failing: BaseException | None = None
        self.budget = 10**6

    def allowed(self, new_ids: list[int]) -> bytes:
        self.seen += new_ids
        self.num_taken += len(new_ids)
        if new_ids:
            self.threads.append(threading.current_thread().name)
            self.is_held = not self.gate.is_set()
            assert self.gate.wait(60)
            self.is_held = False
            if self.failing is not None:
                raise self.failing
            self.budget -= len(new_ids)
            if self.budget < 0:
                self.error = LIMIT
        if self.error:
            return bytes(VOCAB // 8)
        if self.seen and self.seen[-1] >= FORCES_NEXT:
            return (1 << (self.seen[-1] + 1)).to_bytes(VOCAB // 8, "little")
        return b"\xff" * (VOCAB // 8)

    def fail(self, failure: RequestFailure) -> None:
        self.error = failure

    def rollback(self, num_tokens: int) -> None:
        del self.seen[len(self.seen) - num_tokens :]
        self.num_taken -= num_tokens


def wait_for_all_but_the_held(jobs: Sequence[Any], *, alone: bool) -> None:
    """Stand for :func:`~quire.runner.step.mask_threads.wait` on any machine, and call it.

    Those that no gate holds are done by then, however long that takes.
    """
    for job in jobs:
        while not (job.finished.is_set() or job.matcher.is_held):
            time.sleep(0.001)
    wait(jobs, alone=alone)


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
        forced = self.state.grammars.advance(rows, num_others)
        return {self.rows.index(row): found for row, found in forced.items()}

    def propose(self, *proposals: list[int], num_others: int = 1) -> list[int]:
        """Have the grammars of the first rows follow proposed tokens; return how many they have."""
        counts = {}
        for row, tokens in zip(self.rows, proposals, strict=False):
            assert self.state.grammars.can_follow_proposals(row)
            start = int(self.table.num_tokens[row])
            self.table.token_ids[row, start : start + len(tokens)] = tokens
            counts[row] = len(tokens)
        followed = self.state.grammars.look_ahead(counts, num_others)
        return [followed[row] for row in counts]

    def wait(self) -> None:
        while self.state.grammars.unready_rows():
            self.state.grammars.wait_until_ready(20)

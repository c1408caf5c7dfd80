"""Hidden states of a step for the proposers that read them; this module proposes nothing.

B requests of the step, T rows of it, L states after the final norm, D model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.core.step import SchedulerOutput, SequenceResult
from quire.kernels.backend import Array, Backend
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import HiddenStates
from quire.models.model import Model
from quire.runner.step.computed_step import ComputedStep
from quire.runner.step.drafts.proposer_failures import ProposerFailures
from quire.speculative.drafters.target_states import ComputedStates, StateReader, WantedStates


class HiddenStateCapture:
    """The proposers of one engine that read states.

    Args:
        table: The runner's token table.
        model: The target.
        readers: Proposers that read states, at least one, by the name of their method.
        failures: Contexts of their failures, by the same names.

    Attributes:
        capture: Capture of a step's residual stream; None where no reader needs it.
    """

    def __init__(
        self,
        table: TokenTable,
        model: Model,
        readers: Mapping[str, StateReader],
        failures: Mapping[str, ProposerFailures],
    ) -> None:
        self._table = table
        self._backend: Backend = model.backend
        self._readers = readers
        self._failures = failures
        self._wanted = {name: reader.wanted_states for name, reader in readers.items()}
        #: Methods that read the states after the final norm at every position.
        self._final_readers = {
            name
            for name in readers
            if self._wanted[name].of_every_position and not self._wanted[name].layers
        }
        layers = sorted({n for wanted in self._wanted.values() for n in wanted.layers})
        config = model.config
        self._ones: IntArray = np.ones(0, np.int32)
        self.capture = (
            ResidualCapture(self._backend, layers, config.hidden_size, config.num_layers)
            if layers
            else None
        )

    def wanted_rows(
        self, plan: SchedulerOutput, methods: Mapping[int, str]
    ) -> list[tuple[int, int, int]]:
        """Return the rows whose final states are wanted, without rows that tokens are drawn from.

        Args:
            plan: The step's plan.
            methods: Methods by row of the table.

        Returns:
            ``(i, first, count)``, as in :meth:`~quire.runner.step.input_batch.InputBatch.build`.
        """
        wanted: list[tuple[int, int, int]] = []
        if not self._final_readers:
            return wanted
        for i, request in enumerate(plan.scheduled):
            count = request.num_scheduled_tokens - request.samples
            if count and methods.get(self._table.rows[request.request_id]) in self._final_readers:
                wanted.append((i, 0, count))
        return wanted

    def read(
        self,
        step: ComputedStep,
        methods: Mapping[int, str],
        paths: Mapping[int, Sequence[int]],
    ) -> None:
        """Give the readers the states of their rows in a step.

        Args:
            step: The step, its tokens drawn.
            methods: Methods by row of the table.
            paths: Accepted tokens of trees, by row of the table.
        """
        plan, hidden, counts = step.plan, step.hidden, step.proposals.counts
        results = step.output.results
        only_draws = counts is None and step.num_rows == len(hidden) == len(plan.scheduled)
        if only_draws and not any(result.error for result in results.values()):
            self._read_decodes(plan, hidden, methods)
            return
        reads: dict[str, list[tuple[int, int, list[int]]]] = {}
        extra = len(hidden) - sum(count for _, _, count in step.proposals.wanted_rows)
        first_row = first_drawn = 0
        for i, request in enumerate(plan.scheduled):
            proposed = 0 if counts is None else int(counts[i])
            scheduled, start = request.num_scheduled_tokens, request.num_computed_tokens
            row = self._table.rows[request.request_id]
            wanted = self._wanted.get(methods.get(row, ""))
            if wanted is not None:
                num_accepted = _num_accepted(results.get(request.request_id))
                first = scheduled - request.samples
                path = paths.get(row, range(max(num_accepted, 0)))
                drawn = [first_drawn, *(first_drawn + 1 + node for node in path)]
                drawn = drawn if request.samples and num_accepted >= 0 else []
                places = [
                    *range(first_row, first_row + scheduled),
                    *(first_row + scheduled + node for node in path),
                ]
                if not wanted.layers:
                    before = range(extra, extra + first) if wanted.of_every_position else ()
                    extra += len(before)
                    places = [*before, *drawn]
                if not wanted.of_every_position:
                    start += scheduled - 1 + num_accepted
                    places = places[-1:] if drawn else []
                if places and num_accepted >= 0:
                    reads.setdefault(methods[row], []).append((row, start, places))
            first_row += scheduled + proposed
            first_drawn += (proposed + 1) * request.samples
        for method, runs in reads.items():
            self._give(method, runs, hidden)

    def _read_decodes(
        self, plan: SchedulerOutput, hidden: HiddenStates, methods: Mapping[int, str]
    ) -> None:
        """Give the readers a step in which each request has one row and drew from it."""
        rows = np.array([self._table.rows[r.request_id] for r in plan.scheduled], np.int32)
        starts = np.array([r.num_computed_tokens for r in plan.scheduled], np.int32)
        if len(rows) > len(self._ones):
            self._ones = np.ones(2 * len(rows), np.int32)
        found = [methods.get(row, "") for row in rows.tolist()]
        different = set(found)
        for method in different & self._readers.keys():
            reader, wanted = self._readers[method], self._wanted[method]
            states = self._whole(wanted, hidden)
            own, first = rows, starts
            if states is None or len(different) > 1:
                at = np.array([i for i, name in enumerate(found) if name == method], np.int32)
                states, own, first = self._gather(wanted, at, hidden), rows[at], starts[at]
            with self._failures[method]:
                reader.observe(ComputedStates(own, first, self._ones[: len(own)], states))

    def fork(self, parent: int, child: int, methods: Mapping[int, str]) -> None:
        """Copy the readers' state of a row to another one, where both have the same reader."""
        reader = self._readers.get(methods.get(parent, ""))
        if reader is not None and methods.get(child) == methods[parent]:
            with self._failures[methods[parent]]:
                reader.fork(parent, child)

    def _give(
        self,
        method: str,
        runs: Sequence[tuple[int, int, list[int]]],
        hidden: HiddenStates,
    ) -> None:
        rows, starts, places = zip(*runs, strict=True)
        counts = np.array([len(own) for own in places], np.int32)
        at = np.array([place for own in places for place in own], np.int32)
        states = self._gather(self._wanted[method], at, hidden)
        computed = ComputedStates(
            np.array(rows, np.int32), np.array(starts, np.int32), counts, states
        )
        with self._failures[method]:
            self._readers[method].observe(computed)

    def _whole(self, wanted: WantedStates, hidden: HiddenStates) -> Array | None:
        """Return the wanted states of all rows of the step, where an array has these alone."""
        if not wanted.layers:
            return hidden.states
        assert self.capture is not None, "a reader of layers came after the capture was made"
        return self.capture.states if wanted.layers == self.capture.layers else None

    def _gather(self, wanted: WantedStates, at: IntArray, hidden: HiddenStates) -> Array:
        """Return the states of some rows of the step, at least one."""
        backend, num_parts = self._backend, 1
        source = self._whole(wanted, hidden)
        if source is not None:
            first, count = int(at[0]), len(at)
            if int(at[-1]) - first == count - 1 and (np.diff(at) == 1).all():
                return source[first : first + count]
        else:
            assert self.capture is not None
            columns = np.array([self.capture.layers.index(n) for n in wanted.layers], np.int32)
            states, num_layers = self.capture.states, len(self.capture.layers)
            source = states.reshape(states.shape[0] * num_layers, -1)
            at = (num_layers * at[:, None] + columns).reshape(-1)
            num_parts = len(columns)
        out = backend.empty((len(at), source.shape[1]), backend.activation_dtype)
        backend.gather_rows(source, backend.from_numpy(at), out)
        return out.reshape(len(at) // num_parts, -1)


def _num_accepted(result: SequenceResult | None) -> int:
    """Return the number of proposals that were accepted; -1 for a request that ends by an error."""
    if result is None:
        return 0
    return -1 if result.error is not None else result.num_accepted

"""Requests for proposed tokens at the start of a step: the rows, their proposers and limits.

This module neither proposes nor checks tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import choose_speculation
from quire.core.step import SchedulerOutput, StepOutput
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import num_masked_pairs
from quire.layers.sampler import Sampler
from quire.models.model import Model
from quire.runner.step.computed_step import ComputedStep, StepProposals
from quire.runner.step.drafts.draft_sampling import DraftDraws
from quire.runner.step.drafts.proposer_failures import ProposerFailures
from quire.runner.step.hidden_state_capture import HiddenStateCapture
from quire.runner.step.sampling_state import SamplingState
from quire.speculative.drafters.target_states import StateReader
from quire.speculative.proposer import ComputingProposer, PacedProposer, Proposer, TreeProposer
from quire.speculative.rejection import Rejection
from quire.speculative.token_tree import TreeShape, tree_shape

#: Makes the proposers of a token table, by the name of their method.
CreateProposers = Callable[[TokenTable], Mapping[str, Proposer]]


class EngineProposers:
    """The proposers of one engine, and the choice of them by live row.

    It is a :class:`~quire.runner.step.speculation.Speculation`.
    """

    def __init__(
        self,
        table: TokenTable,
        sampling: SamplingState,
        sampler: Sampler,
        methods: Sequence[SpeculativeMethod],
        proposers: Mapping[str, Proposer],
        model: Model,
    ) -> None:
        self._table = table
        self._sampling = sampling
        self._draws = DraftDraws(sampling, sampler)
        self._methods = methods
        self._proposers = proposers
        self._shapes: dict[str, TreeShape] = {
            m.method: tree_shape(m) for m in methods if m.has_tree
        }
        self._paced = [p for p in proposers.values() if isinstance(p, PacedProposer)]
        self._computing = [p for p in proposers.values() if isinstance(p, ComputingProposer)]
        self._failures = {name: ProposerFailures(name) for name in proposers}
        self._row_methods: dict[int, str] = {}
        self._extra_keys: dict[int, tuple[str, ...]] = {}
        readers = {n: p for n, p in proposers.items() if isinstance(p, StateReader)}
        self._states = (
            HiddenStateCapture(table, model, readers, self._failures) if readers else None
        )
        self._forks: list[tuple[int, int]] = []  # those of the step that is drawn
        # Parents in trees of steps not drawn yet, by row of the table; see ``tree_paths``.
        self._parents: dict[int, list[int]] = {}

    def begin(self, row: int, params: SamplingParams, extra_keys: tuple[str, ...]) -> None:
        """Begin a request that is new or starts over; see the protocol."""
        chosen = choose_speculation(params.speculative, self._methods)
        if chosen is None:
            return
        with self._failures[chosen.method]:
            self._proposers[chosen.method].begin(row, extra_keys)
            self._row_methods[row] = chosen.method
            self._extra_keys[row] = extra_keys
            # A grammar drops proposals by their tokens, which acceptance by rejection must not: the
            # target's own draws verify the proposals of rows with a grammar.
            if chosen.acceptance == "rejection" and params.structured_outputs is None:
                self._draws.rejecting.add(row)

    def fork(self, parent: int, child: int, params: SamplingParams) -> None:
        """Begin a sequence that splits off from another one."""
        if parent in self._row_methods:
            self.begin(child, params, self._extra_keys[parent])
            self._forks.append((parent, child))

    def forget(self, row: int) -> None:
        """Release a row that was begun; the table still has its tokens."""
        if row in self._row_methods:
            self._draws.rejecting.discard(row)
            self._release_proposals([row])
            del self._extra_keys[row]
            method = self._row_methods.pop(row)
            with self._failures[method]:
                self._proposers[method].forget(row)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the data that proposers keep by block."""
        for method, proposer in self._proposers.items():
            with self._failures[method]:
                proposer.copy_blocks(pairs)

    def propose(self, plan: SchedulerOutput, output: StepOutput) -> StepProposals:
        """Write proposed tokens into the table where a plan has slots for them."""
        start = time.perf_counter()
        counts = self._propose(plan)
        output.propose_seconds = time.perf_counter() - start
        for proposer in self._computing:
            output.draft_work.add(proposer.take_work())
        parents = self._trees(plan)
        output.num_masked_pairs = sum(map(num_masked_pairs, parents.values()))
        if self._states is None:
            return StepProposals(counts, parents)
        wanted = self._states.wanted_rows(plan, self._row_methods)
        return StepProposals(counts, parents, wanted, self._states.capture)

    def _propose(self, plan: SchedulerOutput) -> IntArray | None:
        """Write the tokens, and return (B,) int32, their number for each request, or None."""
        if self._parents or self._draws.drafts:  # state of other steps and of earlier ones
            self._release_proposals([self._table.rows[r.request_id] for r in plan.scheduled])
        batches: dict[tuple[str, TreeShape | None], list[tuple[int, int, int]]] = {}
        with_slots = [(i, r) for i, r in enumerate(plan.scheduled) if r.num_lookahead_tokens]
        for i, request in with_slots:
            row = self._table.rows[request.request_id]
            # Rows that could not be begun have slots, but no method.
            if row in self._row_methods and self._sampling.grammars.can_follow_proposals(row):
                entry = i, row, request.num_lookahead_tokens
                batches.setdefault(self._method_and_shape(row), []).append(entry)
        if not batches:
            return None
        found: dict[int, int] = {}
        for (method, shape), entries in batches.items():
            _, rows, most = (np.array(column, np.int32) for column in zip(*entries, strict=True))
            self._table.reserve(rows, most + 1)
            proposed = self._propose_by(method, shape, rows, most)
            found.update(zip(rows.tolist(), proposed, strict=True))
        for row in [row for row in found if self._parents.get(row) == []]:
            del self._parents[row]
        followed = self._sampling.grammars.look_ahead(found, len(plan.scheduled) - len(found))
        counts = np.zeros(len(plan.scheduled), np.int32)
        for entries in batches.values():
            for i, row, _ in entries:
                counts[i] = followed[row]
        return counts if counts.any() else None

    def _trees(self, plan: SchedulerOutput) -> Mapping[int, Sequence[int]]:
        """Return the parents in the trees of a plan, by row of the table."""
        if not self._parents:
            return self._parents
        rows = [self._table.rows[request.request_id] for request in plan.scheduled]
        return {row: self._parents[row] for row in rows if row in self._parents}

    def begin_draws(self) -> None:
        """Begin the draws of a step: sequences split off from now on."""
        self._forks.clear()

    def _release_proposals(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._parents.pop(row, None)
            self._draws.drafts.pop(row, None)

    def samples(self) -> Samples:
        """Return the number of each proposer's failures, by metric stem."""
        stem = "spec_decode_num_failed_proposals"
        return {f'{stem}{{method="{name}"}}': own.count for name, own in self._failures.items()}

    def observe(self, step: ComputedStep, paths: Mapping[int, Sequence[int]]) -> None:
        """Give proposers the results of a step that was computed, its tokens drawn."""
        if self._states is not None:
            self._states.read(step, self._row_methods, paths)
            for parent, child in self._forks:
                self._states.fork(parent, child, self._row_methods)
        seconds = time.perf_counter() - step.begin
        for proposer in self._paced:
            proposer.step_took(seconds)

    def rejection(self, row: int) -> Rejection | None:
        """Return the rejection that verifies a row's proposals; None for the target's draws."""
        return self._draws.rejection(row)

    def _method_and_shape(self, row: int) -> tuple[str, TreeShape | None]:
        """Return the method by which a row gets proposals, and the shape of its tree."""
        method = self._row_methods[row]
        # Rules read the tokens before a draw, which the table has in the order of a chain.
        is_chain = row in self._draws.rejecting or self._sampling.has_rules(row)
        return method, None if is_chain else self._shapes.get(method)

    def _propose_by(
        self, method: str, shape: TreeShape | None, rows: IntArray, most: IntArray
    ) -> list[int]:
        """Let a proposer write its tokens; one that fails costs its rows no more than these."""
        proposer = self._proposers[method]
        with self._failures[method]:
            if shape is None:
                counts: list[int] = proposer.propose(rows, most, self._draws).tolist()
                return counts
            assert isinstance(proposer, TreeProposer), f"{method} has no trees"
            trees = proposer.propose_trees(rows, most, shape, self._draws.rank)
            self._parents.update(zip(rows.tolist(), trees, strict=True))
            return [len(parents) for parents in trees]
        for row in rows.tolist():
            self._draws.drafts.pop(row, None)
        return [0] * len(rows)

"""Requests for proposed tokens at the start of a step: the rows, their proposers and limits.

This module neither proposes nor checks tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from quire.core.metrics import Samples
from quire.core.model.forward_work import ForwardWork
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.speculative_params import choose_speculation
from quire.core.step import SchedulerOutput, StepOutput
from quire.kernels.backend import Array
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.layers.residual_capture import ResidualCapture
from quire.layers.sampler import Sampler
from quire.models.decoder import HiddenStates
from quire.models.model import Model
from quire.runner.step.draft_sampling import DraftDraws
from quire.runner.step.hidden_state_capture import ComputedRows, HiddenStateCapture
from quire.runner.step.proposer_failures import ProposerFailures
from quire.runner.step.sampling_state import SamplingState
from quire.speculative.drafters.target_states import StateReader
from quire.speculative.proposer import (
    Chances,
    ComputingProposer,
    PacedProposer,
    Proposer,
    TreeProposer,
)
from quire.speculative.rejection import Rejection
from quire.speculative.token_tree import TreeShape, tree_shape

#: Makes the proposers of a token table, by the name of their method.
CreateProposers = Callable[[TokenTable], Mapping[str, Proposer]]


class EngineProposers:
    """The proposers of one engine, and the choice of them by live row."""

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
        self._sampler = sampler
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
        #: Parents in trees of steps not drawn yet, by row of the table; see ``tree_paths``.
        self.parents: dict[int, list[int]] = {}

    @property
    def capture(self) -> ResidualCapture | None:
        """Residual stream that a step of the target is to keep, or None."""
        return None if self._states is None else self._states.capture

    @property
    def reads_states(self) -> bool:
        """Whether a proposer reads the target's states."""
        return self._states is not None

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
            self._let_go([row])
            del self._extra_keys[row]
            method = self._row_methods.pop(row)
            with self._failures[method]:
                self._proposers[method].forget(row)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the data that proposers keep by block."""
        for method, proposer in self._proposers.items():
            with self._failures[method]:
                proposer.copy_blocks(pairs)

    def propose(self, plan: SchedulerOutput) -> IntArray | None:
        """Write proposed tokens into the table where a plan has slots for them.

        Returns:
            (B,) int32, number of tokens for each request of the plan; None when no request got any.
        """
        if self.parents or self._draws.drafts:  # state of other steps and of earlier ones
            self._let_go([self._table.rows[request.request_id] for request in plan.scheduled])
        asked: dict[tuple[str, TreeShape | None], list[tuple[int, int, int]]] = {}
        wanting = [(i, r) for i, r in enumerate(plan.scheduled) if r.num_lookahead_tokens]
        for i, request in wanting:
            row = self._table.rows[request.request_id]
            # Rows that could not be begun have slots, but no method.
            if row in self._row_methods and self._sampling.grammars.can_follow_proposals(row):
                one = i, row, request.num_lookahead_tokens
                asked.setdefault(self._way(row), []).append(one)
        if not asked:
            return None
        found: dict[int, int] = {}
        for (method, shape), entries in asked.items():
            _, rows, most = (np.array(column, np.int32) for column in zip(*entries, strict=True))
            self._table.reserve(rows, most + 1)
            got = self._ask(method, shape, rows, most)
            found.update(zip(rows.tolist(), got, strict=True))
        for row in [row for row in found if self.parents.get(row) == []]:
            del self.parents[row]
        followed = self._sampling.grammars.look_ahead(found, len(plan.scheduled) - len(found))
        counts = np.zeros(len(plan.scheduled), np.int32)
        for entries in asked.values():
            for i, row, _ in entries:
                counts[i] = followed[row]
        return counts if counts.any() else None

    def trees(self, plan: SchedulerOutput) -> Mapping[int, Sequence[int]]:
        """Return the part of :attr:`parents` that belongs to a plan."""
        if not self.parents:
            return self.parents
        rows = [self._table.rows[request.request_id] for request in plan.scheduled]
        return {row: self.parents[row] for row in rows if row in self.parents}

    def draw(self) -> None:
        """Begin the draws of a step: sequences split off from now on."""
        self._forks.clear()

    def _let_go(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.parents.pop(row, None)
            self._draws.drafts.pop(row, None)

    def samples(self) -> Samples:
        """Return the number of each proposer's failures, by metric stem."""
        stem = "spec_decode_num_failed_proposals"
        return {f'{stem}{{method="{name}"}}': own.count for name, own in self._failures.items()}

    def wanted_rows(self, plan: SchedulerOutput) -> list[tuple[int, int, int]]:
        """Return the rows of a step whose states proposers read, without rows that are drawn from.

        They have the form of :meth:`~quire.runner.step.input_batch.InputBatch.build`.
        """
        if self._states is None:
            return []
        return self._states.wanted_rows(plan, self._row_methods)

    def observe(
        self,
        plan: SchedulerOutput,
        num_proposed: IntArray | None,
        output: StepOutput,
        hidden: HiddenStates,
        paths: Mapping[int, Sequence[int]],
        decodes: ComputedRows | None,
    ) -> None:
        """Give proposers the results of a step that was computed, its tokens drawn.

        Args:
            plan: The step's plan.
            num_proposed: The result of :meth:`propose`.
            output: The step's output, with the drawn tokens.
            hidden: The step's hidden states; :meth:`wanted_rows` are the last ones.
            paths: The result of :meth:`~quire.runner.step.token_sampling.TokenSampling.run`.
            decodes: Rows of a step in which each request has one row and drew from it; else None.
        """
        if self._states is not None:
            methods = self._row_methods
            self._states.read(plan, num_proposed, output, hidden, methods, paths, decodes)
            for parent, child in self._forks:
                self._states.fork(parent, child, self._row_methods)

    def take_work(self) -> ForwardWork:
        """Return the estimated work of proposers since the last call."""
        work = ForwardWork()
        for proposer in self._computing:
            work.add(proposer.take_work())
        return work

    def step_took(self, seconds: float) -> None:
        """Give proposers the seconds of a step of the target, without proposing."""
        for proposer in self._paced:
            proposer.step_took(seconds)

    def rejection(self, row: int) -> Rejection | None:
        """Return the rejection that verifies a row's proposals; None for the target's draws."""
        if row not in self._draws.rejecting:
            return None
        drafts = self._draws.drafts.get(row)
        seed = self._sampling.seed(row)
        return Rejection(seed, None if drafts is None else np.stack(drafts))

    def _way(self, row: int) -> tuple[str, TreeShape | None]:
        """Return the method by which a row gets proposals, and the form of its tree."""
        method = self._row_methods[row]
        # Rules read the tokens before a draw, which the table has in the order of a chain.
        is_chain = row in self._draws.rejecting or self._sampling.has_rules(row)
        return method, None if is_chain else self._shapes.get(method)

    def _rank(
        self, logits: Array, rows: IntArray, lengths: IntArray, count: int
    ) -> tuple[IntArray, Chances]:
        tokens, chances = self._sampler.best(logits, count)
        sampled = np.flatnonzero(self._sampling.temperature(rows) > 0).astype(np.int32)
        if len(sampled):
            # The target draws the winner of a race: the winner without those before it comes next.
            batch = self._sampling.draft_batch(rows[sampled], lengths[sampled])
            tokens = tokens.copy()
            own = self._sampler.select(logits, sampled)
            for rank in range(tokens.shape[1]):
                drawn = self._sampler.draw(
                    self._sampler.select(own, np.arange(len(sampled), dtype=np.int32)), batch
                )
                tokens[sampled, rank] = drawn
                own[np.arange(len(sampled)), drawn] = -np.inf
        return tokens, chances

    def _ask(
        self, method: str, shape: TreeShape | None, rows: IntArray, most: IntArray
    ) -> list[int]:
        """Let a proposer write its tokens; one that fails costs its rows no more than these."""
        proposer = self._proposers[method]
        with self._failures[method]:
            if shape is None:
                counts: list[int] = proposer.propose(rows, most, self._draws).tolist()
                return counts
            assert isinstance(proposer, TreeProposer), f"{method} has no trees"
            trees = proposer.propose_trees(rows, most, shape, self._rank)
            self.parents.update(zip(rows.tolist(), trees, strict=True))
            return [len(parents) for parents in trees]
        for row in rows.tolist():
            self._draws.drafts.pop(row, None)
        return [0] * len(rows)

"""The interface by which a step gets proposed tokens, and the one that proposes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.step import SchedulerOutput, StepOutput
from quire.runner.step.computed_step import ComputedStep, StepProposals
from quire.speculative.rejection import Rejection


class Speculation(Protocol):
    """Proposed tokens for the live rows of one token table."""

    def begin(self, row: int, params: SamplingParams, extra_keys: tuple[str, ...]) -> None:
        """Begin a request that is new or starts over.

        Args:
            row: Row of the table; its tokens are there.
            params: Settings of the request.
            extra_keys: The same as in :meth:`quire.speculative.proposer.Proposer.begin`.
        """
        ...

    def fork(self, parent: int, child: int, params: SamplingParams) -> None:
        """Begin a sequence that splits off from another one."""
        ...

    def forget(self, row: int) -> None:
        """Release a row; the table still has its tokens."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the data that is kept by block: ``(source, destination)`` of the target's blocks."""
        ...

    def propose(self, plan: SchedulerOutput, output: StepOutput) -> StepProposals:
        """Write proposed tokens into the table where a plan has slots for them.

        Args:
            plan: The step's plan.
            output: The step's output, which gets the time and the work of proposing.
        """
        ...

    def begin_draws(self) -> None:
        """Begin the draws of a step: sequences split off from now on."""
        ...

    def rejection(self, row: int) -> Rejection | None:
        """Return the rejection that verifies a row's proposals; None for the target's draws."""
        ...

    def observe(self, step: ComputedStep, paths: Mapping[int, Sequence[int]]) -> None:
        """Give proposers the results of a step that was computed, its tokens drawn.

        Args:
            step: The step.
            paths: The result of :meth:`~quire.runner.step.token_sampling.TokenSampling.run`.
        """
        ...

    def samples(self) -> Samples:
        """Return the number of each proposer's failures, by metric stem."""
        ...


class NoSpeculation:
    """The speculation of an engine, or of a step, that tries no tokens; see the protocol."""

    _NO_PROPOSALS = StepProposals()

    def begin(self, row: int, params: SamplingParams, extra_keys: tuple[str, ...]) -> None:
        """Do nothing: no row gets proposals."""

    def fork(self, parent: int, child: int, params: SamplingParams) -> None:
        """Do nothing: no row gets proposals."""

    def forget(self, row: int) -> None:
        """Do nothing: no row was begun."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: no data is kept."""

    def propose(self, plan: SchedulerOutput, output: StepOutput) -> StepProposals:
        """Return no proposals."""
        return self._NO_PROPOSALS

    def begin_draws(self) -> None:
        """Do nothing: no state is kept of a step."""

    def rejection(self, row: int) -> Rejection | None:
        """Return None: there is nothing to verify."""
        return None

    def observe(self, step: ComputedStep, paths: Mapping[int, Sequence[int]]) -> None:
        """Do nothing: no proposer reads results."""

    def samples(self) -> Samples:
        """Return no counters."""
        return {}


#: The one instance: it has no state.
NO_SPECULATION = NoSpeculation()

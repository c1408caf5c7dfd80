"""The rows of one step from proposal to draw, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.core.step import SchedulerOutput, StepOutput
from quire.kernels.batch.token_table import IntArray
from quire.layers.residual_capture import ResidualCapture
from quire.models.decoder import HiddenStates


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Prompt positions of one request whose states are read in this step.

    Attributes:
        request_id: Id of the request.
        index: Index into the plan's ``scheduled``.
        first: Index of the first row among the request's rows in this step.
        start: Position of the first row in the prompt.
        count: Number of positions, at least 1.
    """

    request_id: str
    index: int
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class StepProposals:
    """Tokens that a step tries, and what their proposers read of it.

    Attributes:
        counts: (B,), number of tokens proposed for each request; None for none at all.
        parents: Parents of the tokens that form a tree, by row of the table; the same as in
            :func:`~quire.kernels.batch.tree_batch.tree_paths`.
        wanted_rows: Rows whose states proposers read, without rows that are drawn from, in the form
            of :meth:`~quire.runner.step.input_batch.InputBatch.build`.
        capture: Residual stream that the step is to keep; None for none.
    """

    counts: IntArray | None = None
    parents: Mapping[int, Sequence[int]] = field(default_factory=dict)
    wanted_rows: Sequence[tuple[int, int, int]] = ()
    capture: ResidualCapture | None = None


@dataclass(frozen=True, slots=True)
class ComputedStep:
    """The rows of a step that the model computes.

    Attributes:
        plan: The plan of these rows.
        output: The step's output so far.
        prompt_parts: Prompt positions whose states are read.
        proposals: The proposed tokens among the rows.
        hidden: Hidden states that the model computes; the proposals' ``wanted_rows`` are the last.
        num_rows: Number of rows, T.
        num_samples: Number of leading rows of ``hidden`` that tokens are drawn from.
        begin: Time at which the model began.
    """

    plan: SchedulerOutput
    output: StepOutput
    prompt_parts: Sequence[PromptPart]
    proposals: StepProposals
    hidden: HiddenStates
    num_rows: int
    num_samples: int
    begin: float

"""Requests that are not finished, in all of a runner's state that belongs to one."""

from __future__ import annotations

from typing import Any

from quire.core.sampling_params import SamplingParams
from quire.core.step import NewRequest, SchedulerOutput
from quire.runner.memory.adapter_store import AdapterStore, NoAdapters
from quire.runner.step.computed_step import StepProposals
from quire.runner.step.input_batch import InputBatch
from quire.runner.step.picture_encoding import NoPictures, PictureRows
from quire.runner.step.prompt_reads import PromptReads
from quire.runner.step.sampling_state import SamplingState
from quire.runner.step.speculation import NO_SPECULATION, Speculation
from quire.runner.step.token_sampling import TokenDraw


class LiveRequests:
    """Live requests by id: they are added, split off, reset and forgotten here.

    Args:
        input_batch: Rows of the requests.
        sampling: Sampling settings of these rows.
        prompt_reads: Requests whose prompts' states are read.
        pictures: Pictures of the requests.
        adapters: Adapters of the requests.

    Attributes:
        speculation: Source of the rows' proposals.
    """

    def __init__(
        self,
        input_batch: InputBatch,
        sampling: SamplingState,
        prompt_reads: PromptReads,
        pictures: PictureRows | NoPictures,
        adapters: AdapterStore | NoAdapters,
    ) -> None:
        self._input = input_batch
        self._table = input_batch.table
        self._sampling = sampling
        self._prompt_reads = prompt_reads
        self._pictures = pictures
        self._adapters = adapters
        self.speculation: Speculation = NO_SPECULATION
        self._params: dict[str, SamplingParams] = {}
        self._broken: dict[str, BaseException] = {}  # reasons, of requests that could not be added

    def update(self, plan: SchedulerOutput) -> None:
        """Apply a plan's changes; new requests that cannot be added are broken."""
        for request_id in plan.finished_request_ids:
            self._forget(request_id)
        for request in plan.new_requests:
            self._params[request.request_id] = request.params
            try:
                self._add(request)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # Rust libraries raise panics as such
                self._broken[request.request_id] = error
                continue
            self._prompt_reads.set(request)
        self._input.update_blocks(plan, self._broken)

    def broken(self, plan: SchedulerOutput) -> dict[str, BaseException]:
        """Return the reasons why requests of a plan could not be added, by request id."""
        if not self._broken:
            return {}
        names = [request.request_id for request in plan.scheduled]
        return {name: self._broken[name] for name in names if name in self._broken}

    def draws(self, plan: SchedulerOutput, proposals: StepProposals) -> list[TokenDraw]:
        """List a step's draws; children are split off here, and drawn after their parents."""
        draws: list[TokenDraw] = []
        last_rows: dict[str, int] = {}
        first, counts = 0, proposals.counts
        for i, request in enumerate(plan.scheduled):
            if request.samples:
                request_id = request.request_id
                count = 0 if counts is None else int(counts[i])
                row, params = self._table.rows[request_id], self._params[request_id]
                draw = TokenDraw(request_id, row, first, params, count)
                if count:
                    draw.parents = proposals.parents.get(row)
                    draw.rejection = self.speculation.rejection(row)
                draws.append(draw)
                first += count + 1
                last_rows[request_id] = first - 1
        for fork in plan.forks:
            row = self._input.fork(fork.parent_id, fork.child_id)
            parent = self._table.rows[fork.parent_id]
            self._sampling.set(row, fork.params, fork.seed, parent)
            self._params[fork.child_id] = fork.params
            self.speculation.fork(parent, row, fork.params)
            draws.append(TokenDraw(fork.child_id, row, last_rows[fork.parent_id], fork.params))
        return draws

    def undo(self, plan: SchedulerOutput, totals: dict[str, Any]) -> None:
        """Restore the state that requests had before a step that failed.

        Args:
            plan: The step's plan.
            totals: The result of :meth:`~quire.runner.step.prompt_reads.PromptReads.totals` before.
        """
        self._prompt_reads.restore(totals)
        for fork in plan.forks:
            self._forget(fork.child_id)
        for request in plan.scheduled:
            if request.samples:
                row = self._table.rows[request.request_id]
                num_known = request.num_computed_tokens + request.num_scheduled_tokens
                self._table.num_tokens[row] = num_known
                self._sampling.restart(row)

    def _add(self, request: NewRequest) -> None:
        adapter = request.source.adapter
        slot = 0 if adapter is None else self._adapters.slot(adapter.content_hash)
        row = self._input.add(request, slot)
        self._pictures.set(request.request_id, request.source.pictures)
        self._sampling.set(row, request.params, request.seed)
        self.speculation.begin(row, request.params, request.source.all_keys)

    def _forget(self, request_id: str) -> None:
        row = self._table.rows.get(request_id)
        if row is not None:
            self.speculation.forget(row)
        self._table.remove(request_id)
        self._params.pop(request_id, None)
        self._broken.pop(request_id, None)
        self._prompt_reads.remove(request_id)
        self._pictures.remove(request_id)

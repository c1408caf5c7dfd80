"""Operations and bytes of steps, estimated from shapes alone; nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.metrics import Samples
from quire.core.model.forward_work import ForwardWork, Passes, PassShape
from quire.core.step import SchedulerOutput, SequenceResult, StepOutput
from quire.planner.machine_speed import MachineSpeed


class StepEstimate:
    """Sums of floating-point operations and bytes over steps, those of drafters included.

    Args:
        shape: Shape of a pass through the model.
        speed: The machine's highest speed; None where it was not measured.

    Attributes:
        work: Work of all steps so far.
        flop_utilization: The last step's operations per second over the machine's highest rate.
        bandwidth_utilization: The last step's bytes read per second over the machine's highest
            rate.
    """

    def __init__(self, shape: PassShape, speed: MachineSpeed | None = None) -> None:
        self._shape = shape
        self._speed = speed
        self.work = ForwardWork()
        self.flop_utilization = self.bandwidth_utilization = 0.0

    def add(self, plan: SchedulerOutput, output: StepOutput, seconds: float) -> None:
        """Count one step that took ``seconds``, with its proposed tokens and their proposers."""
        work = self._shape.work(_passes(plan, output.results, output.num_masked_pairs))
        work.add(output.draft_work)
        self.work.add(work)
        if self._speed is not None and seconds > 0:
            self.flop_utilization = work.flops / seconds / self._speed.compute
            self.bandwidth_utilization = work.read_bytes / seconds / self._speed.read

    def samples(self) -> Samples:
        """Return the counters, and the last step's utilization if known, by metric stem."""
        values: Samples = {
            "estimated_flops_per_gpu": self.work.flops,
            "estimated_read_bytes_per_gpu": self.work.read_bytes,
            "estimated_write_bytes_per_gpu": self.work.write_bytes,
        }
        if self._speed is not None:
            values["model_flops_utilization_perc"] = self.flop_utilization
            values["model_bandwidth_utilization_perc"] = self.bandwidth_utilization
        return values


def _passes(
    plan: SchedulerOutput, results: Mapping[str, SequenceResult], num_masked_pairs: int
) -> Passes:
    """Return the passes through the model in a step."""
    found = Passes(1, pairs=-num_masked_pairs)
    for row in plan.scheduled:
        result = results.get(row.request_id)
        proposed = 0 if result is None else result.num_proposed
        new, before = row.num_scheduled_tokens + proposed, row.num_computed_tokens
        found.tokens += new
        found.pairs += new * before + new * (new + 1) // 2
        found.context += before + new
        found.logits += row.samples + proposed
    return found

"""What the model computes and moves, estimated from shapes alone; it measures nothing."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.kv_cache_spec import KVCacheSpec
from quire.core.machine_speed import MachineSpeed
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.step import SchedulerOutput, SequenceResult, StepOutput


class StepEstimate:
    """Adds up floating-point operations and bytes over steps.

    A multiplication with an addition is two operations; norms, RoPE and sampling are left out. Each
    step reads all weights once and each request's KV once.

    Args:
        config: The decoder's shape.
        weight_bytes: Weights as they lie in memory.
        spec: The KV cache's blocks.
        speed: What the machine reaches at most; None where nobody has measured it.

    Attributes:
        flops, read_bytes, write_bytes: So far.
        flop_utilization: Of the last step: its operations a second over the machine's fastest.
        bandwidth_utilization: Of the last step: bytes read a second over what it reads at most.
    """

    def __init__(
        self,
        config: ModelConfig,
        weight_bytes: int,
        spec: KVCacheSpec,
        speed: MachineSpeed | None = None,
    ) -> None:
        width, heads = config.hidden_size, config.num_heads * config.head_dim
        attention = width * (2 * heads + 2 * config.num_kv_heads * config.head_dim)
        factor = 3 if config.gated_mlp else 2
        mlp = factor * width * config.intermediate_size
        if config.moe is not None:
            experts = config.moe.top_k * factor * config.moe.intermediate_size
            mlp = width * (experts + config.moe.num_experts)
        self._token_flops = 2 * config.num_layers * (attention + mlp)
        self._pair_flops = 4 * config.num_layers * heads
        self._logits_flops = 2 * width * config.vocab_size
        self._weight_bytes = weight_bytes
        self._kv_token_bytes = spec.token_bytes
        self.flops = 0
        self.read_bytes = 0
        self.write_bytes = 0
        self._speed = speed
        self.flop_utilization = self.bandwidth_utilization = 0.0

    def add(self, plan: SchedulerOutput, output: StepOutput, seconds: float) -> None:
        """Count one step that took ``seconds``, its proposed tokens included.

        What proposed them is not counted: neither its work nor, in the rates, its time.
        """
        flops, read_bytes = self.flops, self.read_bytes
        self._count(plan, output.results, output.num_masked_pairs)
        seconds -= output.propose_seconds
        if self._speed is not None and seconds > 0:
            self.flop_utilization = (self.flops - flops) / seconds / self._speed.compute
            self.bandwidth_utilization = (self.read_bytes - read_bytes) / seconds / self._speed.read

    def _count(
        self, plan: SchedulerOutput, results: Mapping[str, SequenceResult], num_masked_pairs: int
    ) -> None:
        tokens = context = samples = 0
        pairs = -num_masked_pairs
        for row in plan.scheduled:
            result = results.get(row.request_id)
            proposed = 0 if result is None else result.num_proposed
            new, before = row.num_scheduled_tokens + proposed, row.num_computed_tokens
            tokens += new
            pairs += new * before + new * (new + 1) // 2
            context += before + new
            samples += row.samples + proposed
        self.flops += self._token_flops * tokens + self._pair_flops * pairs
        self.flops += self._logits_flops * samples
        self.read_bytes += self._weight_bytes + self._kv_token_bytes * context
        self.write_bytes += self._kv_token_bytes * tokens

    def samples(self) -> Samples:
        """Return the counters, and the last step's utilization if known, by metric stem."""
        values: Samples = {
            "estimated_flops_per_gpu": self.flops,
            "estimated_read_bytes_per_gpu": self.read_bytes,
            "estimated_write_bytes_per_gpu": self.write_bytes,
        }
        if self._speed is not None:
            values["model_flops_utilization_perc"] = self.flop_utilization
            values["model_bandwidth_utilization_perc"] = self.bandwidth_utilization
        return values

"""What the model computes and moves, estimated from shapes alone; it measures nothing."""

from __future__ import annotations

from quire.core.kv_cache_spec import KVCacheSpec
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.step import SchedulerOutput


class StepEstimate:
    """Adds up floating-point operations and bytes over steps.

    A multiplication with an addition is two operations; norms, RoPE and sampling are left out. Each
    step reads all weights once and each request's KV once.

    Args:
        config: The decoder's shape.
        weight_bytes: Weights as they lie in memory.
        spec: The KV cache's blocks.

    Attributes:
        flops, read_bytes, write_bytes: So far.
    """

    def __init__(self, config: ModelConfig, weight_bytes: int, spec: KVCacheSpec) -> None:
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

    def add(self, plan: SchedulerOutput) -> None:
        """Count one step."""
        tokens = pairs = context = samples = 0
        for row in plan.scheduled:
            new, before = row.num_scheduled_tokens, row.num_computed_tokens
            tokens += new
            pairs += new * before + new * (new + 1) // 2
            context += before + new
            samples += row.samples
        self.flops += self._token_flops * tokens + self._pair_flops * pairs
        self.flops += self._logits_flops * samples
        self.read_bytes += self._weight_bytes + self._kv_token_bytes * context
        self.write_bytes += self._kv_token_bytes * tokens

    def samples(self) -> Samples:
        """Return the counters by metric stem."""
        return {
            "estimated_flops_per_gpu": self.flops,
            "estimated_read_bytes_per_gpu": self.read_bytes,
            "estimated_write_bytes_per_gpu": self.write_bytes,
        }

"""Ways to free memory on a device: how much each frees, and its side effect; formulas alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.advice.measured_formats import MEASURED_FORMATS, QUALITY_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The memory that one device must hold.

    Attributes:
        weight_bytes: Bytes of the model's weights, on all devices together.
        weight_bits: Bits of a weight.
        spec: The KV cache in one process.
        context: Number of tokens of a sequence.
        sequences: Number of sequences at once.
        shared_prefix: First tokens that all sequences have in common.
        width: Devices that share the model.
        scratch_bytes: Bytes of activations and buffers, on each device.
        prefix_caching: Whether common blocks are there once.
    """

    weight_bytes: int
    weight_bits: float
    spec: KVCacheSpec
    context: int
    sequences: int
    shared_prefix: int = 0
    width: int = 1
    scratch_bytes: int = 0
    prefix_caching: bool = False

    @property
    def kv_blocks(self) -> int:
        """Blocks of all sequences."""
        blocks = self.sequences * self.spec.num_blocks(self.context)
        if self.prefix_caching:
            shared = min(self.shared_prefix, self.context) // self.spec.block_size
            blocks -= (self.sequences - 1) * shared
        return blocks

    @property
    def device_kv_bytes(self) -> int:
        """KV on one device; heads that are fewer than devices are on several."""
        heads = self.spec.num_kv_heads
        part = -(-max(heads, self.width) // self.width) / heads
        return round(self.kv_blocks * self.spec.block_bytes * part)

    @property
    def device_bytes(self) -> int:
        """All that one device must hold."""
        return -(-self.weight_bytes // self.width) + self.device_kv_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to need less memory.

    Attributes:
        name: Name of what is done.
        flag: The setting.
        freed_bytes: Bytes that it frees on each device.
        side_effect: The effect on speed, quality or requests.
        needed_bytes: Bytes that a device needs with this way alone.
    """

    name: str
    flag: str
    freed_bytes: int
    side_effect: str
    needed_bytes: int


def rank_strategies(use: Use) -> list[Strategy]:
    """Return the five ways, the one that frees most first; each counted by itself."""
    form = next(one for one in MEASURED_FORMATS if one.name == "int4")
    loss = f"perplexity x {form.perplexity:.4f} ({QUALITY_MODEL}); weights are read faster"
    bits = min(form.bits, use.weight_bits)
    fewer = replace(use, weight_bytes=round(use.weight_bytes * bits / use.weight_bits))
    small = replace(use.spec, dtype="int8")
    kv = use if small.token_bytes >= use.spec.token_bytes else replace(use, spec=small)
    half = max(1, use.context // 2)
    shared = min(use.shared_prefix, use.context)
    ways = [
        ("quantize weights", "--quantization int4", fewer, loss),
        ("quantize KV", "--kv-cache-dtype int8", kv,
            "K and V are rounded: attention loses some precision"),
        ("shorter context", f"--max-model-len {half}", replace(use, context=half),
            "longer requests are refused"),
        ("more tensor parallelism", f"--tensor-parallel-size {2 * use.width}",
            replace(use, width=2 * use.width),
            "twice the devices, which wait for each other in every layer"),
        ("prefix caching", "--enable-prefix-caching", replace(use, prefix_caching=True),
            f"none on tokens; frees only what prompts share ({shared:,} tokens here)"),
    ]  # fmt: skip
    before = use.device_bytes
    found = [
        Strategy(name, flag, before - after.device_bytes, effect, after.device_bytes)
        for name, flag, after, effect in ways
    ]
    return sorted(found, key=lambda one: -one.freed_bytes)

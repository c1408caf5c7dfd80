"""One device's memory by use, and its part of a KV cache that several devices share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.memory_budget import budget_from_total, kv_bytes_from_free

#: Part of a device's memory for weights, scratch and KV, where none is given.
DEFAULT_FRACTION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device, and the memory in use there besides the KV cache.

    Attributes:
        total: Bytes of the device.
        scratch: Bytes of activations and other buffers.
        fraction: Part of the memory for weights, scratch and KV; None: 0.9, or ``free_fraction``.
        free_fraction: Part of what weights and scratch leave, for KV; None: ``fraction`` counts.
        num_devices: Equal devices that share the weights and the KV heads.
    """

    total: int
    scratch: int = 0
    fraction: float | None = None
    free_fraction: float | None = None
    num_devices: int = 1

    def divide(self, weight_bytes: int) -> dict[str, int]:
        """Return the bytes of each use on one device; without memory for any KV it has 0.

        Args:
            weight_bytes: Bytes of the weights on all devices together.
        """
        weights = -(-weight_bytes // self.num_devices)
        free_bytes = self.total - weights - self.scratch
        if self.free_fraction is None:
            fraction = DEFAULT_FRACTION if self.fraction is None else self.fraction
            kv_bytes = budget_from_total(self.total, fraction) - weights - self.scratch
        else:
            kv_bytes = kv_bytes_from_free(free_bytes, self.free_fraction)
        kv_bytes = max(kv_bytes, 0)
        rest = free_bytes - kv_bytes
        return {"weights": weights, "KV": kv_bytes, "scratch": self.scratch, "headroom": rest}

    def part_of(self, spec: KVCacheSpec) -> KVCacheSpec | None:
        """Return one device's part of a KV cache; None where its heads cannot be shared out.

        KV heads fewer than devices are copied.
        """
        heads = max(spec.num_kv_heads, self.num_devices)
        if heads % self.num_devices or heads % spec.num_kv_heads:
            return None
        return replace(spec, num_kv_heads=heads // self.num_devices)


def sequences_bytes(spec: KVCacheSpec, num_tokens: int, num_sequences: int) -> int:
    """Return the bytes of the KV of sequences of some tokens each, without unfilled blocks."""
    return spec.token_bytes * num_tokens * num_sequences

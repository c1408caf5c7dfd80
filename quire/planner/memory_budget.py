"""Division of memory: bytes in, number of KV blocks out; it measures and allocates nothing.

There are three ways to say how much memory there is for the KV cache: a fraction of all memory, for
weights, scratch *and* KV; a fraction of what weights and scratch leave; or absolute bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import DTYPE_BYTES, KV_DTYPE_BITS, KVCacheSpec

NOTHING_FITS = (
    "This machine does not have the memory for any context: lower --max-num-seqs, "
    "--max-num-batched-tokens or --block-size, or take smaller weights."
)


@dataclass(frozen=True, slots=True)
class KVPool:
    """A KV cache besides the one that requests' block tables count in.

    Attributes:
        spec: Size of the pool's blocks.
        num_blocks: Number of blocks of its own; None for one to each block of the first cache, with
            the same id (a draft model's KV).
        place: The memory that it lies in: ``device``, or ``host`` where the machine's memory is
            another one.
    """

    spec: KVCacheSpec
    num_blocks: int | None = None
    place: Literal["device", "host"] = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDemand:
    """The memory that an engine needs.

    Attributes:
        weight_bytes: Weights as they lie in memory, of all models.
        weight_dtype: Element type of the weights.
        scratch_bytes: Activations, logits and other buffers at the largest step.
        spec: The KV cache's blocks.
        max_model_len: Tokens of the longest request, which must fit alone.
        pools: Further KV caches.
    """

    weight_bytes: int
    weight_dtype: str
    scratch_bytes: int
    spec: KVCacheSpec
    max_model_len: int
    pools: tuple[KVPool, ...] = ()

    def __post_init__(self) -> None:
        for pool in self.pools:
            if pool.num_blocks is None:
                assert pool.place == "device", f"shared block ids on the {pool.place}"
                assert pool.spec.block_size == self.spec.block_size, (pool.spec, self.spec)

    def with_model(self, other: MemoryDemand) -> MemoryDemand:
        """Return the demand of both models, whose requests have one block table for both."""
        return replace(
            self,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            scratch_bytes=self.scratch_bytes + other.scratch_bytes,
            pools=(*self.pools, KVPool(other.spec), *other.pools),
        )

    @property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        """KV caches that share block ids: one id names a block of each."""
        return (self.spec, *(pool.spec for pool in self.pools if pool.num_blocks is None))

    @property
    def block_bytes(self) -> int:
        """Bytes of what one block id names, scales included."""
        return sum(spec.block_bytes for spec in self.specs)

    def pool_bytes(self, place: str) -> int:
        """Return the bytes of the pools with a number of blocks of their own in one place."""
        own = (pool for pool in self.pools if pool.num_blocks is not None and pool.place == place)
        return sum((pool.num_blocks or 0) * pool.spec.block_bytes for pool in own)

    @property
    def fixed_bytes(self) -> int:
        """Bytes on the device before the first block."""
        return self.weight_bytes + self.scratch_bytes + self.pool_bytes("device")

    @property
    def least_bytes(self) -> int:
        """Bytes with which one request of full length runs; the null block is one block more."""
        num_blocks = self.spec.num_blocks(self.max_model_len) + 1
        return self.fixed_bytes + num_blocks * self.block_bytes

    def longest_fitting(self, budget_bytes: int) -> int:
        """Return the most tokens of a request that runs in ``budget_bytes``; 0 or less if none."""
        available = budget_bytes - self.fixed_bytes
        num_blocks = available // self.block_bytes - 1
        return self.spec.tokens_held(num_blocks, self.max_model_len)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A device's memory, divided.

    Attributes:
        demand: The demand that was met.
        device_bytes: Bytes of the whole device.
        num_blocks: KV blocks, the null block included.
    """

    demand: MemoryDemand
    device_bytes: int
    num_blocks: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV caches on the device, with their scales."""
        shared = self.num_blocks * self.demand.block_bytes
        return shared + self.demand.pool_bytes("device")

    @property
    def headroom_bytes(self) -> int:
        """Bytes of the device that the engine leaves free."""
        demand = self.demand
        return self.device_bytes - demand.weight_bytes - demand.scratch_bytes - self.kv_bytes

    def shares(self) -> dict[str, tuple[int, float]]:
        """Return bytes and percentage of the device for each use; the percentages sum to 100.0."""
        return shares(
            {
                "weights": self.demand.weight_bytes,
                "scratch": self.demand.scratch_bytes,
                "KV": self.kv_bytes,
                "headroom": self.headroom_bytes,
            }
        )

    def num_sequences(self, num_tokens: int) -> int:
        """Return how many requests of ``num_tokens`` tokens each fit at once."""
        return (self.num_blocks - 1) // self.demand.spec.num_blocks(num_tokens)


def budget_from_total(total_bytes: int, fraction: float) -> int:
    """Return the bytes for weights, scratch and KV together (``gpu_memory_utilization``)."""
    return int(total_bytes * fraction)


def kv_bytes_from_free(free_bytes: int, fraction: float) -> int:
    """Return the part of what weights and scratch leave that is for KV blocks alone.

    That is ``free_gpu_memory_fraction``; ``fraction`` is in (0, 1].
    """
    return int(free_bytes * fraction)


def free_from_kv_bytes(kv_bytes: int, fraction: float) -> int:
    """Return the least that weights and scratch must leave, of which a part is for KV blocks."""
    free_bytes = math.ceil(kv_bytes / fraction)
    while kv_bytes_from_free(free_bytes, fraction) < kv_bytes:  # floats round
        free_bytes += 1
    return free_bytes


def shares(parts: dict[str, int]) -> dict[str, tuple[int, float]]:
    """Return each part's bytes and its percentage of all, in tenths that sum to 100.0.

    The largest remainders are rounded up, as seats are shared out by votes.
    """
    total = sum(parts.values())
    if total <= 0:
        return dict.fromkeys(parts, (0, 0.0))
    tenths = {name: 1000 * size // total for name, size in parts.items()}
    missing = 1000 - sum(tenths.values())
    by_remainder = sorted(parts, key=lambda name: -(1000 * parts[name] % total))
    for name in by_remainder[:missing]:
        tenths[name] += 1
    return {name: (size, tenths[name] / 10) for name, size in parts.items()}


def num_sequences(kv_bytes: int, spec: KVCacheSpec, num_tokens: int) -> int:
    """Return how many requests of ``num_tokens`` tokens each fit in ``kv_bytes``."""
    return kv_bytes // (spec.num_blocks(num_tokens) * spec.block_bytes)


def divide_memory(
    demand: MemoryDemand,
    device_bytes: int,
    budget_bytes: int,
    kv_bytes: int | None = None,
    host_bytes: int = 0,
    free_fraction: float = 1.0,
    memory_parts: int = 1,
    kv_parts: int = 1,
) -> MemoryBudget:
    """Divide a budget: what weights and scratch leave becomes KV blocks.

    ``num_blocks = floor((budget - weights - scratch) * free_fraction / block)``.

    Args:
        demand: The memory that is needed.
        device_bytes: All memory of the device.
        budget_bytes: Bytes of the device that the engine may use.
        kv_bytes: Bytes for KV blocks alone, when given; they must lie within the budget.
        host_bytes: Bytes that the engine may use of the host's memory, where that is another one.
        free_fraction: Fraction for KV of what weights and scratch leave of the budget.
        memory_parts, kv_parts: Processes that ``--memory`` and the bytes of ``--kv-cache-size``
            are divided among, of which this is one: the message names what is to be given for all.

    Raises:
        ConfigError: The pools on the host do not fit. Or a request of full length does not; the
            message names three settings with which it would, as far as the device has the memory.
    """
    if demand.pool_bytes("host") > host_bytes:
        raise ConfigError(
            f"[config] KV caches on the host must fit in {format_bytes(host_bytes)}; got "
            f"{format_bytes(demand.pool_bytes('host'))}. Lower their size."
        )
    available = budget_bytes - demand.fixed_bytes
    if available > 0:
        available = kv_bytes_from_free(available, free_fraction)
    if kv_bytes is not None:
        if kv_bytes > available:
            sizes = max(available, 0), budget_bytes, kv_bytes
            most, budget, given = (format_bytes(size * kv_parts) for size in sizes)
            raise ConfigError(
                f"[config] --kv-cache-size (--kv-cache-memory-bytes) must be at most {most}, what "
                f"weights and scratch leave of {budget}; got {given}. Lower it, or raise --memory."
            )
        available = kv_bytes
    num_blocks = max(available, 0) // demand.block_bytes
    needed = demand.spec.num_blocks(demand.max_model_len) + 1
    if num_blocks < needed:
        allowed = demand.fixed_bytes + available
        kv_given, parts = kv_bytes is not None, memory_parts if kv_bytes is None else kv_parts
        options = _fitting_settings(
            demand, allowed, device_bytes, kv_given=kv_given, fraction=free_fraction, parts=parts
        )
        advice = f"Any of these would fit: {'; '.join(options)}." if options else NOTHING_FITS
        raise ConfigError(
            f"[config] the KV cache must hold one request of {demand.max_model_len} tokens; got "
            f"{format_bytes(max(available, 0))} for it ({format_bytes(budget_bytes)} less weights "
            f"{format_bytes(demand.weight_bytes)} and scratch "
            f"{format_bytes(demand.scratch_bytes)}{_of_each(memory_parts)}), needed "
            f"{format_bytes(needed * demand.block_bytes)}. {advice}"
        )
    return MemoryBudget(demand, device_bytes, num_blocks)


def _of_each(parts: int) -> str:
    return "" if parts == 1 else f", in each of {parts} processes"


def _fitting_settings(
    demand: MemoryDemand,
    allowed: int,
    device_bytes: int,
    *,
    kv_given: bool,
    fraction: float,
    parts: int,
) -> list[str]:
    """Return three settings, each of which makes the demand of each part fit by itself.

    Fewer where the device does not have the memory for three.
    """
    spec = demand.spec
    variants = [("", demand)]
    if KV_DTYPE_BITS[spec.dtype] > 16:
        variants += [
            ("--kv-cache-dtype bfloat16 ", replace(demand, spec=replace(spec, dtype="bfloat16")))
        ]
    if DTYPE_BYTES.get(demand.weight_dtype, 0) > 2 and not kv_given:
        # The KV cache may follow --dtype; it is counted as it is, so the setting fits either way.
        halved = replace(demand, weight_bytes=demand.weight_bytes // 2)
        variants += [("--dtype bfloat16 ", halved)]
    settings = []
    for flags, variant in variants:
        longest = variant.longest_fitting(allowed)
        if longest >= demand.max_model_len:
            settings.append(flags.rstrip())
        elif longest > 0:
            settings.append(f"{flags}--max-model-len {longest}")
    settings = settings[:2]
    for divisor in (1, 2, 4)[: 3 - len(settings)]:
        length = -(-demand.max_model_len // divisor)
        least = replace(demand, max_model_len=length).least_bytes - demand.fixed_bytes
        needed = demand.fixed_bytes + free_from_kv_bytes(least, fraction)
        if needed * parts > device_bytes:
            continue
        if kv_given:
            needed -= demand.fixed_bytes
        memory = f"{'--kv-cache-size' if kv_given else '--memory'} "
        memory += _mib_up(needed * parts)
        settings.append(memory if divisor == 1 else f"--max-model-len {length} {memory}")
    return settings


def _mib_up(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)}MiB"

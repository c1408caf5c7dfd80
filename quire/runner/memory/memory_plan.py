"""The memory plan: weights, scratch and KV blocks on this machine, and the contexts that fit.

The arithmetic is in :mod:`quire.planner.memory_budget`; here are its inputs and lines for people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.core.plurals import counted
from quire.layers.workspace import workspace_bytes
from quire.planner.memory_budget import (
    MemoryBudget,
    MemoryDemand,
    divide_memory,
    free_from_kv_bytes,
    kv_bytes_from_free,
)
from quire.runner.blocks.tiers.create_tiers import tier_pools
from quire.runner.memory.picture_memory import picture_bytes
from quire.runner.step.token_sampling import LOGITS_CHUNK_ROWS
from quire.settings.cache_options import CacheOptions
from quire.settings.resolve import ResolvedConfig

#: Tokens that must fit at least, where no context length was given.
LEAST_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one engine.

    Attributes:
        budget: The division; ``num_blocks`` blocks are allocated.
        max_model_len: Tokens of the longest request.
        choices: One line for each value that was chosen rather than given.
    """

    budget: MemoryBudget
    max_model_len: int
    choices: tuple[str, ...]

    def lines(self) -> list[str]:
        """Describe the uses of memory, and the number of sequences that fit by length."""
        budget, demand = self.budget, self.budget.demand
        spec = demand.spec
        lengths = [self.max_model_len]
        while len(lengths) < 4 and lengths[-1] >= 4 * spec.block_size:
            lengths.append(lengths[-1] // 4)
        fits = ", ".join(f"{budget.num_sequences(n):,} of {counted(n, 'token')}" for n in lengths)
        uses = [
            f"{name} {format_bytes(size)} ({share:.1f}%)"
            for name, (size, share) in budget.shares().items()
        ]
        device = format_bytes(budget.device_bytes)
        token_bytes = sum(spec.token_bytes for spec in demand.specs)
        scale_bytes = sum(spec.token_scale_bytes for spec in demand.specs)
        scales = f" ({format_bytes(scale_bytes)} of it scales)" if scale_bytes else ""
        host_bytes = demand.pool_bytes("host")
        host = f"; KV {format_bytes(host_bytes)} on the host" if host_bytes else ""
        return [
            f"memory: {' + '.join(uses)} = {device}{host}",
            f"KV cache: {counted(budget.num_blocks - 1, 'block')} of "
            f"{counted(spec.block_size, 'token')} in {spec.dtype}, {format_bytes(token_bytes)} a "
            f"token{scales}; sequences at once: {fits}",
        ]


def model_demand(
    config: ModelConfig, resolved: ResolvedConfig, weight_bytes: int, activation_dtype: str
) -> MemoryDemand:
    """Return the memory that a model needs at the largest step."""
    options = resolved.config.scheduler
    spec = config.kv_cache_spec(
        resolved.config.cache.block_size,
        resolved.kv_cache_dtype,
        window=kept_window(config, resolved.config.cache),
        step_tokens=options.max_num_batched_tokens,
    )
    # Sampling and log-probabilities have copies of a chunk in addition to the step's logits.
    rows = options.max_logits_rows + 2 * LOGITS_CHUNK_ROWS if config.generates else 0
    scratch = workspace_bytes(config, options.max_num_batched_tokens, activation_dtype)
    scratch += 4 * rows * config.vocab_size
    scratch += picture_bytes(config, resolved, weight_bytes)
    scratch += _table_bytes(options.max_num_seqs, resolved.max_model_len, spec)
    return MemoryDemand(
        weight_bytes=weight_bytes,
        weight_dtype=resolved.dtype,
        scratch_bytes=scratch,
        spec=spec,
        max_model_len=resolved.max_model_len,
        pools=tier_pools(resolved.config.offload, spec),
    )


def least_demand(resolved: ResolvedConfig, demand: MemoryDemand) -> MemoryDemand:
    """Return the demand for the shortest context that is allowed: the given one, or a short one."""
    if resolved.config.model.max_model_len is not None:
        return demand
    return replace(demand, max_model_len=min(demand.max_model_len, LEAST_CONTEXT))


def useful_memory(resolved: ResolvedConfig, demand: MemoryDemand) -> tuple[int, int]:
    """Return the least bytes with which :func:`plan_memory` plans, and the most it can use."""
    cache, least = resolved.config.cache, least_demand(resolved, demand)
    fraction, exact = cache.free_gpu_memory_fraction or 1.0, cache.kv_cache_memory_bytes
    if cache.num_gpu_blocks_override is not None:
        exact = cache.num_gpu_blocks_override * demand.block_bytes
    if exact is not None:
        return demand.fixed_bytes + exact, demand.fixed_bytes + exact
    most = demand.spec.most_blocks(resolved.config.scheduler.max_num_seqs, demand.max_model_len) + 1
    most = min(most, _most_blocks(resolved, demand.spec) or most)
    found = [
        demand.fixed_bytes + free_from_kv_bytes(kv_bytes, fraction)
        for kv_bytes in (least.least_bytes - demand.fixed_bytes, most * demand.block_bytes)
    ]
    return found[0], max(found)


def kept_window(config: ModelConfig, cache: CacheOptions) -> int | None:
    """Return the tokens after which KV is freed, if the model and the layout allow it."""
    every_layer = all(config.layer_windows)
    paged = cache.kv_layout == "paged" and cache.use_cache
    return config.sliding_window if every_layer and paged else None


def plan_memory(resolved: ResolvedConfig, demand: MemoryDemand, device_bytes: int) -> MemoryPlan:
    """Divide the memory that ``resolved`` grants.

    Blocks beyond what ``max_num_seqs`` requests of full length can hold are not allocated. A
    context length that was not given is lowered to what fits.

    Args:
        demand: Demand for ``resolved.max_model_len``.
        device_bytes: Memory that this process may use.

    Raises:
        ConfigError: The model does not fit; the message names three settings with which it would.
    """
    cache, spec = resolved.config.cache, demand.spec
    choices: list[str] = []
    if cache.num_gpu_blocks_override is not None:
        return _fixed_blocks(cache.num_gpu_blocks_override, resolved, demand, device_bytes)
    budget_bytes = resolved.memory_bytes
    fraction = cache.free_gpu_memory_fraction or 1.0
    max_model_len = resolved.max_model_len
    most_blocks = _most_blocks(resolved, spec)
    if resolved.config.model.max_model_len is None:
        free_bytes = kv_bytes_from_free(budget_bytes - demand.fixed_bytes, fraction)
        room = demand.longest_fitting(demand.fixed_bytes + free_bytes)
        if cache.kv_cache_memory_bytes is not None:
            blocks = cache.kv_cache_memory_bytes // demand.block_bytes - 1
            room = min(room, spec.tokens_held(blocks, max_model_len))
        if most_blocks is not None:
            room = min(room, spec.tokens_held(most_blocks - 1, max_model_len))
        if spec.block_size <= room < max_model_len:
            max_model_len = room
            choices.append(f"max_model_len = {room}: what fits of the model's")
            demand = replace(demand, max_model_len=room)
    needed = spec.num_blocks(max_model_len) + 1
    if most_blocks is not None and most_blocks < needed:
        raise ConfigError(
            "[config] --kv-cache-size in tokens (--max-tokens-in-paged-kv-cache) must hold one "
            f"request of --max-model-len ({max_model_len}) tokens; got "
            f"{cache.max_tokens_in_paged_kv_cache}. Raise it, or lower --max-model-len."
        )
    budget = divide_memory(
        demand,
        device_bytes,
        budget_bytes,
        cache.kv_cache_memory_bytes,
        free_fraction=fraction,
        memory_parts=resolved.config.memory_parts,
        kv_parts=resolved.config.parallel.layout.size,
    )
    useful = spec.most_blocks(resolved.config.scheduler.max_num_seqs, max_model_len) + 1
    if cache.kv_cache_memory_bytes is not None:
        useful = budget.num_blocks
    num_blocks = min(budget.num_blocks, useful, most_blocks or useful)
    if num_blocks < budget.num_blocks:
        budget = MemoryBudget(demand, device_bytes, num_blocks)
    return MemoryPlan(budget, max_model_len, tuple(choices))


def _most_blocks(resolved: ResolvedConfig, spec: KVCacheSpec) -> int | None:
    """Return the blocks, the null block included, that hold the most tokens asked for."""
    most_tokens = resolved.config.cache.max_tokens_in_paged_kv_cache
    return None if most_tokens is None else -(-most_tokens // spec.block_size) + 1


def _table_bytes(max_num_seqs: int, max_model_len: int, spec: KVCacheSpec) -> int:
    """Return the bytes of token ids and block tables of ``max_num_seqs`` full-length requests."""
    return 4 * max_num_seqs * (max_model_len + -(-max_model_len // spec.block_size))


def _fixed_blocks(
    num_blocks: int, resolved: ResolvedConfig, demand: MemoryDemand, device_bytes: int
) -> MemoryPlan:
    if num_blocks < 2:
        raise ConfigError(
            "[config] --kv-cache-size in blocks (--num-gpu-blocks-override) must be at least 2, "
            f"the null block included; got {num_blocks}."
        )
    kv_bytes = num_blocks * demand.block_bytes
    room = device_bytes - demand.fixed_bytes
    if kv_bytes > room:
        raise ConfigError(
            "[config] --kv-cache-size in blocks (--num-gpu-blocks-override) must fit in "
            f"{format_bytes(max(room, 0))}, what weights and scratch leave of the machine; got "
            f"{counted(num_blocks, 'block')} of {format_bytes(demand.block_bytes)}. Lower it."
        )
    budget = MemoryBudget(demand, device_bytes, num_blocks)
    fits = (num_blocks - 1) * demand.spec.block_size
    if resolved.config.model.max_model_len is not None or fits >= resolved.max_model_len:
        return MemoryPlan(budget, resolved.max_model_len, ())
    return MemoryPlan(budget, fits, (f"max_model_len = {fits}: what the given blocks hold",))

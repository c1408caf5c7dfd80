"""Creation of the tiers that settings ask for."""

from __future__ import annotations

from pathlib import Path

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Backend, KVCache
from quire.planner.memory_budget import KVPool
from quire.runner.blocks.tiers.block_tiers import BlockTiers
from quire.runner.blocks.tiers.disk_tier import DiskTier
from quire.runner.blocks.tiers.fingerprint import (
    local_fingerprint,
    quick_fingerprint,
    settings_of,
    shared_fingerprint,
)
from quire.runner.blocks.tiers.memory_tier import MemoryTier
from quire.runner.blocks.tiers.ram_tier import RamTier
from quire.runner.blocks.tiers.shared_tier import SharedTier, create_client
from quire.runner.blocks.tiers.slow_tier import SlowTier
from quire.runner.blocks.tiers.slow_tiers import SlowTiers
from quire.runner.blocks.transfer.outbox import Outbox
from quire.runner.blocks.transfer.ports import open_inbox
from quire.settings.offload_options import OffloadOptions
from quire.settings.resolve import ResolvedConfig
from quire.system.log import get_logger

log = get_logger(__name__)

#: Bytes, and blocks, of a slow tier that were read and wait to be taken, at most.
STAGED_BYTES, STAGED_BLOCKS = 64 * 2**20, 64
#: Bytes, and blocks, of a slow tier that wait to be written, at most.
QUEUED_BYTES, QUEUED_BLOCKS = 128 * 2**20, 256


def tier_pools(options: OffloadOptions, spec: KVCacheSpec) -> tuple[KVPool, ...]:
    """Return the memory pools of KV blocks outside of the cache; empty where there are none."""
    if spec.window is not None:  # as in create_tiers
        return ()
    num_blocks = options.ram_bytes // spec.block_bytes
    waiting = _num_staged(spec.block_bytes) + _num_queued(spec.block_bytes)
    num_blocks += options.num_slow * waiting
    return (KVPool(spec, num_blocks),) if num_blocks else ()


def check_tiers(options: OffloadOptions) -> None:
    """Refuse tiers that :func:`create_tiers` would refuse; nothing is connected.

    Raises:
        ConfigError: The store's URL is invalid, or its package is not installed.
    """
    if options.kv_offload_url is not None:
        create_client(options.kv_offload_url, 0)  # it sends nothing


def create_tiers(
    path: Path,
    model: ModelConfig,
    resolved: ResolvedConfig,
    kv_cache: KVCache,
    backend: Backend,
) -> BlockTiers | Outbox | None:
    """Return the tiers that settings and the engine's role ask for; None for none.

    Args:
        path: The checkpoint.
        model: The model's shape.
        resolved: The settings.
        kv_cache: The KV cache of all ranks.
        backend: The backend that computes its content.

    Raises:
        ConfigError: The store's URL is invalid, or its package is not installed.
    """
    options, spec, block_bytes = resolved.config.offload, kv_cache.spec, kv_cache.block_bytes
    transfer = resolved.config.transfer
    settings = settings_of(model, resolved, kv_cache, {"": backend.name, **backend.kernel_names()})
    known = b""
    if transfer is not None and any(address.port for address in transfer.addresses):
        known = quick_fingerprint(path, settings)
    if transfer is not None and transfer.role == "prefill":
        return Outbox(transfer, block_bytes, known)
    num_blocks = options.ram_bytes // block_bytes
    if not num_blocks and not options.num_slow:
        return None
    if spec.window is not None:
        log.warning("KV tiers are off: a model whose layers all have a window uses none yet")
        return None
    writes, slow = not options.kv_offload_read_only, list[SlowTier]()
    if options.kv_offload_dir is not None:
        slow.append(
            DiskTier(
                Path(options.kv_offload_dir).expanduser(),
                local_fingerprint(path, settings),
                block_bytes,
                options.kv_offload_disk_bytes,
                is_writable=writes,
            )
        )
    if options.kv_offload_url is not None:
        slow.append(
            SharedTier(
                options.kv_offload_url,
                lambda: shared_fingerprint(path, settings),
                block_bytes,
                is_writable=writes,
            )
        )
    ram: MemoryTier = RamTier(num_blocks, block_bytes)
    if transfer is not None:
        ram = open_inbox(num_blocks, block_bytes, transfer, known)
    num_staged, num_queued = _num_staged(block_bytes), _num_queued(block_bytes)
    slow_tiers = SlowTiers(slow, block_bytes, num_staged, num_queued)
    tiers = BlockTiers(ram, slow_tiers, block_bytes)
    log.info("KV tiers: %s", tiers.describe())
    return tiers


def _num_staged(block_bytes: int) -> int:
    return min(max(STAGED_BYTES // block_bytes, 2), STAGED_BLOCKS)


def _num_queued(block_bytes: int) -> int:
    return min(max(QUEUED_BYTES // block_bytes, 2), QUEUED_BLOCKS)

"""Placement of the parts of an engine's model: all in this process, or on several ranks."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from quire.core.counts import format_bytes
from quire.core.metrics import Samples
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import KVCache
from quire.layers.parallel.rank_experts import RankExperts
from quire.models.decoder import Decoder
from quire.models.model import Model
from quire.runner.memory.adapter_store import OtherRanks
from quire.runner.memory.memory_plan import MemoryPlan
from quire.runner.memory.model_part import ModelPart
from quire.runner.ranks.commands import Allocate
from quire.runner.ranks.driver_model import DriverDecoder, DriverKVCache
from quire.runner.ranks.handshake import RankLoaded
from quire.runner.ranks.local_ranks import start_local_ranks
from quire.runner.ranks.rank_adapters import ToldAdapters
from quire.runner.ranks.ranks import Ranks
from quire.runner.ranks.ray_actors import RayActors
from quire.runner.ranks.remote_ranks import gather_ranks
from quire.runner.ranks.static_nodes import StaticNodes
from quire.settings.config import EngineConfig


class Placement(Protocol):
    """The part of the model in this process, which runs the engine, and the parts of other ranks.

    Attributes:
        config: The settings of the part in this process.
        part: The part in this process; None for the whole model.
        failure: Socket that is readable once a rank is gone; None where there is no other rank.
    """

    config: EngineConfig
    part: ModelPart | None
    failure: socket.socket | None

    def model(self, own: Decoder) -> Model:
        """Return the whole, given this process's part."""
        ...

    def settle(self, own: MemoryPlan) -> MemoryPlan:
        """Wait until all ranks have loaded, and return the plan that all have room for."""
        ...

    def kv_cache(self, own: KVCache) -> KVCache:
        """Return the whole, given this process's part."""
        ...

    def other_adapters(self) -> OtherRanks | None:
        """Return the other ranks that must have adapters, or None."""
        ...

    def lines(self) -> Sequence[str]:
        """Return lines that tell each rank's part."""
        ...

    def samples(self) -> Samples:
        """Return the traffic between ranks, and each rank's memory, by metric stem."""
        ...

    def check(self) -> None:
        """Return when all parts can be computed.

        Raises:
            RankDeadError: A rank is gone.
        """
        ...

    def close(self) -> None:
        """End other ranks."""
        ...


class OneRank:
    """The whole model in this process; see :class:`Placement`."""

    part: ModelPart | None = None
    failure: socket.socket | None = None

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def model(self, own: Decoder) -> Model:
        """Return ``own``, which is the whole."""
        return own

    def settle(self, own: MemoryPlan) -> MemoryPlan:
        """Return ``own``, which is the whole."""
        return own

    def kv_cache(self, own: KVCache) -> KVCache:
        """Return ``own``, which is the whole."""
        return own

    def other_adapters(self) -> OtherRanks | None:
        """Return None: there is no other rank."""
        return None

    def lines(self) -> Sequence[str]:
        """Return no lines."""
        return ()

    def samples(self) -> Samples:
        """Return the number of ranks."""
        return {"num_ranks": 1}

    def check(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ManyRanks:
    """A model on several ranks, with rank 0 in this process; see :class:`Placement`.

    Args:
        ranks: The other ranks.
        config: The settings of each rank.
        model_config: The model's shape, for the map of ranks.
    """

    def __init__(self, ranks: Ranks, config: EngineConfig, model_config: ModelConfig) -> None:
        self.config = config
        self._ranks = ranks
        self._part = part = ModelPart(0, config.parallel, ranks.group)
        self.part: ModelPart | None = part
        self._world = part.world
        self.failure: socket.socket | None = self._ranks.failure
        self._model_config = model_config
        self._loaded: list[RankLoaded] = []
        self._lead: DriverDecoder | None = None
        self._rank_experts: Sequence[RankExperts] = ()

    def model(self, own: Decoder) -> Model:
        """Return the part in this process with the commands to the others."""
        self._rank_experts = own.rank_experts
        self._lead = DriverDecoder(own, self._part, self._ranks.announce)
        return self._lead

    def settle(self, own: MemoryPlan) -> MemoryPlan:
        """Wait until all ranks have loaded; return the plan with as many blocks as fit on each."""
        demand = own.budget.demand
        mine = RankLoaded(
            demand.weight_bytes,
            demand.scratch_bytes,
            demand.spec.block_bytes,
            own.budget.num_blocks,
            own.max_model_len,
        )
        self._loaded = [mine, *self._ranks.wait_until_loaded()]
        num_blocks = min(rank.num_blocks for rank in self._loaded)
        length = min(rank.max_model_len for rank in self._loaded)
        options = self.config.scheduler
        self._ranks.announce(
            Allocate(
                num_blocks,
                options.max_num_batched_tokens,
                options.max_logits_rows,
                [rank.block_bytes for rank in self._loaded],
            )
        )
        budget = replace(own.budget, num_blocks=num_blocks)
        return MemoryPlan(budget, length, own.choices)

    def kv_cache(self, own: KVCache) -> KVCache:
        """Return the part in this process with the commands to the others."""
        part_bytes = [rank.block_bytes for rank in self._loaded]
        return DriverKVCache(own, self._world, self._ranks.announce, part_bytes)

    def other_adapters(self) -> OtherRanks | None:
        """Return the announcements to the others."""
        return ToldAdapters(self._ranks.announce)

    def lines(self) -> Sequence[str]:
        """Return the map of ranks, and each one's memory."""
        layout = self.config.parallel.layout
        found = list(layout.lines(self._model_config.num_layers))
        for rank, pools in enumerate(self._pools()):
            uses = ", ".join(f"{name} {format_bytes(size)}" for name, size in pools.items())
            found.append(f"rank {rank}: {uses}")
        return found

    def _pools(self) -> list[dict[str, int]]:
        num_blocks = min(one.num_blocks for one in self._loaded)
        return [
            {
                "weights": one.weight_bytes,
                "kv_cache": one.block_bytes * num_blocks,
                "scratch": one.scratch_bytes,
            }
            for one in self._loaded
        ]

    def samples(self) -> Samples:
        """Return the traffic between ranks, and each rank's memory, by metric stem."""
        found = Samples()
        found["num_ranks"] = len(self._loaded)
        if self._rank_experts:
            found["expert_imbalance"] = max(own.imbalance for own in self._rank_experts)
        for rank, pools in enumerate(self._pools()):
            for pool, size in pools.items():
                found[f'rank_memory_bytes{{rank="{rank}",pool="{pool}"}}'] = size
        calls, num_bytes = Counter[str](), Counter[str]()
        for group in self._part.groups:
            calls.update(group.counts.calls)
            num_bytes.update(group.counts.num_bytes)
        for kind, count in calls.items():
            found[f'collective_calls{{kind="{kind}"}}'] = count
            found[f'collective_bytes{{kind="{kind}"}}'] = num_bytes[kind]
        return found

    def check(self) -> None:
        """Return when all ranks live."""
        self._ranks.check()

    def close(self) -> None:
        """End the other ranks."""
        self._ranks.close()
        if self._lead is not None:
            self._lead.close()


def place(folder: Path, config: EngineConfig, model_config: ModelConfig) -> Placement:
    """Start the other ranks, if the settings ask for any.

    Args:
        folder: The checkpoint.
        config: The settings of each rank, but for what :meth:`EngineConfig.of_rank` says.
        model_config: The model's shape.

    Raises:
        OSError: A process cannot be started.
    """
    if config.parallel.layout.size == 1:
        return OneRank(config)
    return ManyRanks(_start(folder, config), config.of_rank(0), model_config)


def _start(folder: Path, config: EngineConfig) -> Ranks:
    options = config.parallel
    if options.nnodes > 1:
        return gather_ranks(folder, config, StaticNodes(options))
    if options.distributed_executor_backend == "ray":
        return gather_ranks(folder, config, RayActors(options.layout, options.threads or 1))
    return start_local_ranks(folder, config)

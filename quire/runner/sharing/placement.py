"""An engine that has all of a model but the experts that other engines of the model have."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from quire.core.config import EngineConfig
from quire.core.expert_sharing import ExpertSharing
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.parallel_costs import SplitShape, sharing_bytes
from quire.kernels.backend import Backend, KVCache
from quire.models.decoder import Decoder
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.engine_model import EngineShard, ExpertPart
from quire.runner.memory import MemoryPlan
from quire.runner.model_part import Part
from quire.runner.sharing.expert_siblings import ExpertSiblings


class SharedPart:
    """See :class:`quire.runner.model_part.Part`.

    Args:
        sharing: The engines, and which this is.
        shard: With them; None where nothing is to be loaded.
    """

    rank = 0

    def __init__(self, sharing: ExpertSharing, shard: EngineShard | None = None) -> None:
        self.shard = shard
        self.share = ExpertPart(sharing.number, sharing.size)

    def open(self, opened: OpenedCheckpoint, backend: Backend) -> OpenedCheckpoint:
        """Return it."""
        return opened

    def layers(self, num_layers: int) -> range:
        """Return all."""
        return range(num_layers)

    def buffer_bytes(self, shape: SplitShape, max_tokens: int) -> int:
        """Return what rows on their way take."""
        return sharing_bytes(shape, self.share.size, max_tokens)


class SharingEngine:
    """See :class:`quire.runner.parallel.placement.Placement`.

    Args:
        config: The engine's settings.
        sharing: The engines, and which this is.
        model_config: The model.

    Raises:
        ConfigError: It has no experts.
        OSError: The address where others ask this engine cannot be had.
    """

    def __init__(
        self, config: EngineConfig, sharing: ExpertSharing, model_config: ModelConfig
    ) -> None:
        self.config = config
        placement = ExpertPart(sharing.number, sharing.size).placement(model_config)
        self._siblings = ExpertSiblings(sharing, placement, model_config.hidden_size)
        self.part: Part | None = SharedPart(sharing, EngineShard(self._siblings))
        self.failure: socket.socket | None = self._siblings.failure

    def model(self, own: Decoder) -> Decoder:
        """Return it."""
        return own

    def settle(self, own: MemoryPlan) -> MemoryPlan:
        """Wait until the others have loaded, too; each has a KV cache of its own."""
        self._siblings.open()
        return own

    def kv_cache(self, own: KVCache) -> KVCache:
        """Return it."""
        return own

    def other_adapters(self) -> None:
        """Each engine has its own."""

    def lines(self) -> Sequence[str]:
        """Return the map of engines."""
        return self._siblings.lines()

    def samples(self) -> Samples:
        """Return what goes between engines, by metric stem."""
        return {"num_ranks": 1} | self._siblings.samples()

    def check(self) -> None:
        """Return when all engines are there."""
        self._siblings.check()

    def close(self) -> None:
        """Part from the others."""
        self._siblings.close()

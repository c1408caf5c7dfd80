"""The driver's part of a model on several ranks: it announces each command, then does its part.

L rows whose logits are wanted, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quire.core.errors import RankDeadError
from quire.core.step import StepInterrupted
from quire.distributed.group import Group
from quire.kernels.backend import Array, KVCache, Linear
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.layers.residual_capture import ResidualCapture
from quire.layers.state_head import StateHead
from quire.models.decoder import Decoder, HiddenStates
from quire.models.shared_weights import SharedWeights
from quire.runner.memory.model_part import ModelPart
from quire.runner.ranks.cache_parts import gather_blocks, own_columns, sum_blocks
from quire.runner.ranks.commands import (
    Announce,
    CopyBlocks,
    CopySlots,
    Forward,
    ReadBlocks,
    SumBlocks,
    WriteBlocks,
    batch_arrays,
)
from quire.runner.ranks.output_ranks import DriverLinear, Outputs, SentOutputs, StageOutputs


class DriverDecoder:
    """Shard 0 of a decoder, which commands the others; see :class:`quire.models.model.Model`.

    Args:
        decoder: The shard.
        part: The shard's place among all.
        announce: Call that sends the other ranks a command.
    """

    def __init__(self, decoder: Decoder, part: ModelPart, announce: Announce) -> None:
        self._decoder, self._part, self._announce = decoder, part, announce
        self._group = part.world
        self._outputs: Outputs = (
            StageOutputs(decoder, announce)
            if part.is_last
            else SentOutputs(decoder, part, announce)
        )
        self.config, self.backend = decoder.config, decoder.backend
        self.max_model_len, self.weight_bytes = decoder.max_model_len, decoder.weight_bytes
        self.held = SharedWeights()  # shares of one rank serve no other decoder
        self._embedding = DriverLinear(decoder.embedding, decoder.backend, announce)

    @property
    def embedding(self) -> Linear:
        """The embedding, looked up by token id."""
        return self._embedding

    @property
    def head(self) -> Linear:
        """The linear that :meth:`logits` multiplies with."""
        return self._outputs.head

    @property
    def state_head(self) -> StateHead:
        """The head on pooled states."""
        return self._decoder.state_head

    def reserve(self, max_tokens: int, max_logits_rows: int = 0) -> None:
        """Allocate activations of this shard; the others did so with their caches."""
        self._decoder.reserve(max_tokens, max_logits_rows)

    def forward(
        self,
        batch: ForwardBatch,
        kv_cache: KVCache,
        between_layers: Callable[[], None] | None = None,
        capture: ResidualCapture | None = None,
    ) -> HiddenStates:
        """Compute a step on all ranks.

        Raises:
            RankDeadError: A rank has failed, maybe this one: the state of the others is unknown.
        """
        assert isinstance(kv_cache, DriverKVCache)
        if not self._part.is_last:
            between_layers = None  # ranks of several stages are not between the same layers
        captured = [] if capture is None else list(capture.layers)
        arrays = batch_arrays(batch, self.backend)
        self._announce(Forward(arrays, between_layers is not None, captured, batch.num_drawn))
        try:
            look = None if between_layers is None else together(self._group, between_layers)
            kept = None if capture is None else self._outputs.capture(capture)
            own = self._decoder.forward(batch, kv_cache.own, look, kept)
            return self._outputs.hidden(own, batch, kept)
        except (StepInterrupted, RankDeadError):
            raise
        except BaseException as error:
            raise RankDeadError(
                f"[rank 0] its part of a step failed: {type(error).__name__}: {error}."
            ) from error

    def logits(self, hidden: HiddenStates) -> Array:
        """Multiply ``hidden``, of a step, with the head; (L, V) float32."""
        return self._outputs.logits(hidden)

    def close(self) -> None:
        """End the thread that waits for other ranks."""
        self._outputs.close()


def together(group: Group, between_layers: Callable[[], None]) -> Callable[[], None]:
    """Return a call that ends a step on all ranks once ``between_layers`` raises on one of them."""

    def look() -> None:
        ends = False
        try:
            between_layers()
        except StepInterrupted:
            ends = True
        if group.any(ends):
            raise StepInterrupted

    return look


class DriverKVCache:
    """A KV cache on several ranks: the part on this rank, and through commands all other parts.

    Args:
        own: The part on this rank.
        group: The ranks.
        announce: Call that sends the other ranks a command.
        part_bytes: Bytes of a block, by rank.

    Attributes:
        spec: Description of the part on this rank.
    """

    def __init__(
        self, own: KVCache, group: Group, announce: Announce, part_bytes: Sequence[int]
    ) -> None:
        self.own, self._group, self._announce = own, group, announce
        self._part_bytes = part_bytes
        self.spec, self.num_blocks = own.spec, own.num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on all ranks."""
        return sum(self._part_bytes)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)``, in order."""
        self._announce(CopyBlocks(list(pairs)))
        self.own.copy_blocks(pairs)

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots ``(source, destination)``, in order."""
        self._announce(CopySlots(list(pairs)))
        self.own.copy_slots(pairs)

    def checksums(self, block_ids: Sequence[int]) -> list[int]:
        """Return a checksum of each block's bytes on all ranks."""
        self._announce(SumBlocks(list(block_ids)))
        return sum_blocks(self.own, block_ids, self._group)

    def read_blocks(self, block_ids: Sequence[int]) -> Array:
        """Return (B, bytes of all ranks) uint8, rank after rank."""
        self._announce(ReadBlocks(list(block_ids)))
        return gather_blocks(self.own, block_ids, self._group, self._part_bytes)

    def write_blocks(self, block_ids: Sequence[int], data: Array) -> None:
        """Write blocks with data from :meth:`read_blocks`."""
        self._announce(WriteBlocks(list(block_ids), data))
        own = own_columns(data, self._part_bytes, 0)
        self.own.write_blocks(block_ids, np.ascontiguousarray(own))

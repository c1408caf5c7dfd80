"""A rank other than the driver's: a part of the model that carries out commands; no requests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.step import StepInterrupted
from quire.distributed.command_ring import CommandChannel
from quire.kernels.backend import Array, KVCache
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.kernels.batch.ragged_batch import rows_without_memory
from quire.models.decoder import Decoder, HiddenStates
from quire.models.stage import SentCapture
from quire.runner.memory.adapter_placing import AdapterReader
from quire.runner.memory.model_part import ModelPart
from quire.runner.ranks import commands
from quire.runner.ranks.cache_parts import gather_blocks, own_columns, sum_blocks
from quire.runner.ranks.driver_model import together
from quire.runner.ranks.rank_adapters import RankAdapters


class Worker:
    """A rank's part of the model, which carries out commands.

    Args:
        decoder: The rank's part.
        part: The place of that part among all.
        spec: Description of the rank's part of the KV cache.
        reader: Reader of adapters; None where there are none.
    """

    def __init__(
        self, decoder: Decoder, part: ModelPart, spec: KVCacheSpec, reader: AdapterReader | None
    ) -> None:
        self._decoder, self._backend, self._part = decoder, decoder.backend, part
        self._group = group = part.world
        self._spec = spec
        self._part_bytes: list[int]
        self._cache: KVCache
        self._hidden: HiddenStates
        self._actions: dict[type, Callable[[Any], object]] = {
            commands.Allocate: self._allocate,
            commands.Forward: self._forward,
            commands.Logits: self._logits,
            commands.Multiply: self._multiply,
            commands.Lookup: self._lookup,
            commands.CopyBlocks: lambda told: self._cache.copy_blocks(told.pairs),
            commands.CopySlots: lambda told: self._cache.copy_slots(told.pairs),
            commands.SumBlocks: lambda told: sum_blocks(self._cache, told.block_ids, group),
            commands.ReadBlocks: self._read_blocks,
            commands.WriteBlocks: self._write_blocks,
        }
        if reader is not None:
            adapters = RankAdapters(reader)
            self._actions |= {
                commands.ReadAdapter: lambda told: adapters.read(told.adapter),
                commands.SetAdapter: lambda told: adapters.set(told.content_hash, told.slot),
                commands.ClearAdapter: lambda told: adapters.clear(told.slot),
            }

    def run(self, channel: CommandChannel) -> NoReturn:
        """Carry out commands until this process ends with its driver.

        Raises:
            Exception: A command failed; the rank's state is unknown then, so that it must end.
        """
        while True:
            command = commands.decode(channel.receive())
            self._actions[type(command)](command)

    def _allocate(self, told: commands.Allocate) -> None:
        self._cache = self._backend.kv_cache(self._spec, told.num_blocks)
        self._part_bytes = told.part_bytes
        self._decoder.reserve(told.max_tokens, told.max_logits_rows)

    def _forward(self, told: commands.Forward) -> None:
        arrays: dict[str, Any] = told.arrays
        batch = self._backend.upload(ForwardBatch(**arrays))
        look = together(self._group, lambda: None) if told.may_end else None
        capture = None
        if told.captured and self._part.sends:
            capture = SentCapture(self._backend, self._group, frozenset(told.captured), 0)
        with suppress(StepInterrupted):  # on all ranks
            self._hidden = self._decoder.forward(batch, self._cache, look, capture)
            self._hand_over(self._hidden.states)
            if told.num_drawn and self._part.is_last and not self._part.is_first:
                self._hand_over(self._decoder.logits(self._hidden[: told.num_drawn]))

    def _logits(self, told: commands.Logits) -> None:
        self._decoder.logits(self._hidden[told.first : told.first + told.count])

    def _multiply(self, told: commands.Multiply) -> None:
        if self._part.is_last:
            rows = None
            if told.adapters is not None:
                batch = rows_without_memory(len(told.adapters))
                batch.adapters = told.adapters
                rows = BatchRows(self._backend.upload(batch))
            states = self._backend.from_numpy(told.states)
            self._hand_over(self._decoder.head(states, None, rows))

    def _hand_over(self, rows: Array) -> None:
        """Send the driver rows of the last stage, where the driver is not of that stage."""
        if self._part.is_last and self._part.sends and len(rows):
            self._group.send(np.ascontiguousarray(self._backend.to_numpy(rows)), 0)

    def _lookup(self, told: commands.Lookup) -> None:
        if self._part.is_first:
            self._decoder.embedding.lookup(self._backend.from_numpy(told.ids))

    def _read_blocks(self, told: commands.ReadBlocks) -> None:
        gather_blocks(self._cache, told.block_ids, self._group, self._part_bytes)

    def _write_blocks(self, told: commands.WriteBlocks) -> None:
        own = own_columns(told.data, self._part_bytes, self._group.rank)
        self._cache.write_blocks(told.block_ids, np.ascontiguousarray(own))

"""The part of a model on a rank: a shard of some layers, with the ranks of the layers around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.distributed.group import Group
from quire.kernels.backend import Backend
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.rank_model import Shard
from quire.models.shards.rank_weights import RankPart
from quire.models.stage import GroupLink, Stage
from quire.planner.parallel_costs import SplitShape, buffer_bytes
from quire.settings.parallel_options import ParallelOptions


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The part of a rank before others are started.

    Attributes:
        rank: Number of the rank.
        options: Settings of the model's division.
    """

    rank: int
    options: ParallelOptions

    @property
    def experts(self) -> ExpertDivision:
        """Division of experts over the ranks that share layers."""
        options = self.options
        return ExpertDivision(
            whole=options.enable_expert_parallel,
            redundant=-(-options.num_redundant_experts // options.tensor_parallel_size),
            interval=options.eplb_step_interval if options.enable_eplb else 0,
        )

    @property
    def share(self) -> RankPart | None:
        """The rank's part of its layers, without links to other ranks; None for all."""
        size, (_, shard) = self.options.tensor_parallel_size, self.options.layout.place(self.rank)
        if size == 1:
            return None
        return RankPart(shard, size, self.options.exact_tensor_parallel, self.experts)

    def layers(self, num_layers: int) -> range:
        """Return which layers of a model it has."""
        layout = self.options.layout
        return layout.stage_layers(num_layers)[layout.place(self.rank)[0]]

    def buffer_bytes(self, shape: SplitShape, max_tokens: int) -> int:
        """Return what it needs for what goes between processes in a step of some tokens."""
        return buffer_bytes(shape, self.options.layout, max_tokens)


#: Returns the group of some ranks, or of all.
GroupOf = Callable[[Sequence[int] | None], Group]


class ModelPart:
    """The part of a rank, connected to others; see :class:`Part`.

    Args:
        rank: Number of the rank.
        options: Settings of the model's division.
        group_of: Call that returns the group of some ranks.

    Attributes:
        rank, layout: Number of the rank, and the layout of all ranks.
        world: The group of all ranks.
        shard: Share of its layers; None for all of them.
        output_rank: The rank that has the logits of a step.
    """

    def __init__(self, rank: int, options: ParallelOptions, group_of: GroupOf) -> None:
        layout = options.layout
        self.rank, self.layout = rank, layout
        self._place = RankPlace(rank, options)
        self.world = group_of(None)
        self._stage, _ = layout.place(rank)
        self.output_rank = layout.stage_ranks(layout.pipeline - 1)[0]
        self.shard: Shard | None = None
        if layout.tensor > 1:
            ranks, is_whole = layout.stage_ranks(self._stage), layout.pipeline == 1
            group = self.world if is_whole else group_of(ranks)
            self.shard = Shard(group, options.exact_tensor_parallel, self._place.experts)

    @property
    def share(self) -> RankPart | None:
        """See :class:`RankPlace`."""
        return self._place.share

    def buffer_bytes(self, shape: SplitShape, max_tokens: int) -> int:
        """See :class:`RankPlace`."""
        return self._place.buffer_bytes(shape, max_tokens)

    @property
    def groups(self) -> list[Group]:
        """Groups by which the rank exchanges data."""
        own = [] if self.shard is None else [self.shard.group]
        return [self.world, *(group for group in own if group is not self.world)]

    @property
    def is_first(self) -> bool:
        """Whether the rank has the embedding."""
        return self._stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the rank has the output head."""
        return self._stage == self.layout.pipeline - 1

    @property
    def sends(self) -> bool:
        """Whether the rank sends the driver its stage's outputs, as one shard of a stage does."""
        return self._stage > 0 and self.rank == self.layout.stage_ranks(self._stage)[0]

    def open(self, opened: OpenedCheckpoint, backend: Backend) -> OpenedCheckpoint:
        """Return the checkpoint as opened for this rank."""
        layout = self.layout
        if layout.pipeline == 1:
            return opened
        before = (
            None if self.is_first else GroupLink(backend, self.world, self.rank - layout.tensor)
        )
        after = None if self.is_last else GroupLink(backend, self.world, self.rank + layout.tensor)
        return opened.of_stage(Stage(self.layers(opened.config.num_layers), before, after))

    def layers(self, num_layers: int) -> range:
        """See :class:`RankPlace`."""
        return self._place.layers(num_layers)

    def sender_of(self, layer: int, num_layers: int) -> int:
        """Return the rank that sends the driver the inputs of a layer."""
        for stage, layers in enumerate(self.layout.stage_layers(num_layers)):
            if layer in layers:
                return self.layout.stage_ranks(stage)[0]
        raise ValueError(f"no stage has layer {layer}")

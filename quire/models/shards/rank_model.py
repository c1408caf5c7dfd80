"""The parts of a checkpoint that one of several ranks has: tensors, and linears that join ranks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.checkpoints.rank_files import RankFolder
from quire.checkpoints.tensor_source import TensorSource
from quire.core.errors import ConfigError
from quire.distributed.group import Group
from quire.kernels.backend import Backend, Linear, MixedExperts
from quire.layers.parallel.expert_placement import ExpertDivision, first_placement
from quire.layers.parallel.parallel_linear import (
    GatheredLinear,
    OwnOutputs,
    ReducedLinear,
    Scratch,
    VocabularyLinear,
)
from quire.layers.parallel.parted_experts import PartedExperts, SplitExperts
from quire.layers.parallel.rank_experts import RankExperts
from quire.models.adapters.places import Places, adaptable_head
from quire.models.arranged_tensors import arrange
from quire.models.expert_maker import ExpertMaker
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.cuts import find_cuts
from quire.models.shards.rank_weights import RankPart
from quire.models.shards.share_weights import ShareWeights, own_parts
from quire.models.shards.shares import find_shares, has_whole_attention
from quire.models.weight_map import LinearWeights, WeightMap
from quire.quantization.quantization_plan import QuantizationPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's shard of a model that is divided over ranks.

    Attributes:
        group: The ranks, this one among them.
        exact: Whether every sum is formed by one rank, so that bits are those of one rank alone.
        experts: Division of the experts over ranks.
    """

    group: Group
    exact: bool = True
    experts: ExpertDivision = ExpertDivision()

    @property
    def part(self) -> RankPart:
        """The same shard without the group that reaches the other ranks."""
        return RankPart(self.group.rank, self.group.size, self.exact, self.experts)

    def __str__(self) -> str:
        kind = "" if self.exact else ", summed"
        return f"rank {self.group.rank} of {self.group.size}{kind}, {self.experts}"


class WholeModel:
    """The parts of a model that one process has alone.

    Args:
        opened: The checkpoint.

    Attributes:
        tensors: Tensors in the kernels' order.
        weights: Shapes of the tensors.
        rank_experts: No experts.
    """

    rank_experts: Sequence[RankExperts] = ()

    def __init__(self, opened: OpenedCheckpoint) -> None:
        self.weights: WeightMap = opened.weights
        self.tensors: TensorSource
        if isinstance(opened.tensors, RankFolder):
            self.tensors = opened.tensors.of_rank(self.weights.layers, {})
        else:
            self.tensors = arrange(opened.tensors, opened.weights.of_all_layers())

    def linear(self, weights: LinearWeights, linear: Linear) -> Linear:
        """Return the linear."""
        return linear

    def vocabulary(self, linear: Linear) -> Linear:
        """Return the linear."""
        return linear

    def experts(self, maker: ExpertMaker) -> tuple[MixedExperts, Sequence[int]]:
        """Return all experts of a layer, and their numbers."""
        numbers = range(len(maker.mlps))
        return maker.stack(numbers, {}), numbers

    def places(self, places: Places) -> Places:
        """Return the places."""
        return places


class RankModel:
    """The parts of a model that one rank has.

    Args:
        backend: The backend that computes.
        opened: The checkpoint.
        shard: The rank's shard.
        plan: The plan of what is rounded when the checkpoint is loaded.
        takes_adapters: Whether adapters may be added to linears.

    Attributes:
        tensors: The rank's rows, in the kernels' order.
        weights: Shapes of the tensors; the configuration is the rank's.
        rank_experts: Experts made by :meth:`experts` whose ranks have whole ones.

    Raises:
        ConfigError: The model cannot be divided that far.
    """

    def __init__(
        self,
        backend: Backend,
        opened: OpenedCheckpoint,
        shard: Shard,
        plan: QuantizationPlan,
        takes_adapters: bool,
    ) -> None:
        self._backend, self._group, self._scratch = backend, shard.group, Scratch(backend)
        self.rank_experts: list[RankExperts] = []
        size, rank = shard.group.size, shard.group.rank
        self._exact, self._division = shard.exact, shard.experts
        if opened.config.moe is None and (shard.experts.redundant or shard.experts.interval):
            raise ConfigError(
                "[parallel] --enable-eplb and --num-redundant-experts need a mixture of experts; "
                f"got {opened.config.architecture}. Leave them out."
            )
        # What adapters add is of whole rows of inputs; files of ranks have these, too.
        exact = shard.exact or takes_adapters or isinstance(opened.tensors, RankFolder)
        cuts = find_cuts(opened.tensors, opened.weights, plan, size, exact)
        self._cuts, self._shares = cuts, find_shares(opened.config, size, cuts.unit, shard.experts)
        self.weights = ShareWeights(opened.weights, self._shares[rank], cuts)
        self._own = own_parts(self.weights, cuts)
        self.tensors: TensorSource
        if isinstance(opened.tensors, RankFolder):
            shapes = self.weights.shapes()
            self.tensors = opened.tensors.of_rank(
                self.weights.layers,
                shapes,
                rank=rank,
                size=size,
                splits_experts=not shard.experts.whole,
            )
        else:
            every = opened.weights.of_all_layers()
            self.tensors = arrange(opened.tensors, every, self._own.picks)
        self._gathered = self._find_gathered()
        if rank == 0:
            self._report(takes_adapters)

    def _report(self, takes_adapters: bool) -> None:
        """Log which linears are not divided as users might expect."""
        config, size = self.weights.whole.config, self._group.size
        if has_whole_attention(config, size):
            log.info(
                "each rank attends with all heads, which are fewer than ranks or normalised "
                "together: only the other matrices are divided"
            )
        if self._cuts.whole:
            num_whole = len(self._cuts.whole)
            log.info("linears that are rotated, so that each rank has all: %d", num_whole)
        if not self._exact and takes_adapters:
            log.info("linears take adapters, so none is divided by inputs")
        for reason, count in Counter(self._cuts.unsummed.values()).items():
            log.info("linears divided by outputs, not by inputs: %d (%s)", count, reason)

    def _find_gathered(self) -> dict[tuple[str, ...], list[int] | None]:
        """Return the linears that end a part of a layer, with the ranks' widths of their inputs."""
        whole = self.weights.whole
        attended = None
        if not has_whole_attention(whole.config, self._group.size):
            attended = [share.config(whole.config).attended_dim for share in self._shares]
        found: dict[tuple[str, ...], list[int] | None] = {}
        for layer in range(whole.config.num_layers):
            found[whole.attention_output(layer).modules] = attended
            mlp, is_dense = whole.mlp(layer), whole.config.layer_moe(layer) is None
            if mlp is not None:
                middles = [share.width if is_dense else share.shared for share in self._shares]
                found[mlp.down.modules] = [len(middle) for middle in middles]
        return found

    def linear(self, weights: LinearWeights, linear: Linear) -> Linear:
        """Return a linear of this rank as a layer uses it."""
        modules, rows = weights.modules, self._own.linears.get(weights.modules)
        if rows is None:
            return linear
        if modules in self._cuts.summed:
            return ReducedLinear(self._group, linear, self._scratch)
        is_whole = modules in self._cuts.whole
        if modules in self._gathered:
            outputs = None if is_whole else [len(share.outputs) for share in self._shares]
            inputs = self._gathered[modules]
            return GatheredLinear(self._group, linear, self._scratch, inputs, outputs)
        return OwnOutputs(linear, self._scratch, rows) if is_whole else linear

    def vocabulary(self, linear: Linear) -> Linear:
        """Return embedding or head of this rank's tokens as one of all."""
        tokens = [share.tokens for share in self._shares]
        return VocabularyLinear(self._group, linear, self._scratch, tokens)

    def experts(self, maker: ExpertMaker) -> tuple[MixedExperts, Sequence[int]]:
        """Return experts of a layer, and the numbers of those that this rank has any of."""
        size, count = self._group.size, len(maker.mlps)
        if not self._division.whole:
            inner = [len(share.expert_width) for share in self._shares]
            outputs = [len(share.outputs) for share in self._shares]
            parts = PartedExperts(*maker.products(), maker.activation, inner, outputs)
            split = SplitExperts(self._backend, self._group, self._scratch, parts)
            return maker.with_adapters(split), range(count)
        placement = first_placement(count, size, self._division.redundant)
        made = RankExperts(
            self._backend,
            self._group,
            self._scratch,
            placement,
            maker.stack,
            self._exact,
            self._division,
            first_step=len(self.rank_experts),
        )
        self.rank_experts.append(made)
        return made, placement.of(self._group.rank)

    def places(self, places: Places) -> Places:
        """Return where adapters are added, each with the rows that this rank has of it."""
        whole, cuts = self.weights.whole, self._cuts
        rows = {m: own for m, own in self._own.linears.items() if m not in cuts.whole}
        rows[adaptable_head(whole).modules] = rows[whole.head().modules]
        return {
            modules: place if place.embeds else replace(place, kept=rows.get(modules))
            for modules, place in places.items()
        }

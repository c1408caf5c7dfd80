"""What one of several ranks makes of a checkpoint: its tensors, and linears that join ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.moe_config import MoEConfig
from quire.distributed.group import Group
from quire.kernels.backend import Backend, Linear, MixedExperts
from quire.layers.expert_placement import even_placement
from quire.layers.parallel_linear import GatheredLinear, OwnOutputs, Scratch, VocabularyLinear
from quire.layers.rank_experts import MakeExperts, RankExperts
from quire.models.adapters.places import Places, adaptable_head
from quire.models.arranged_tensors import arrange
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.quantized_checkpoint import MatrixEntry
from quire.models.shards.share_weights import ShareWeights, own_rows
from quire.models.shards.shares import find_shares, has_whole_attention
from quire.models.weight_map import LinearWeights, WeightMap

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shard:
    """That a model is divided over ranks.

    Attributes:
        group: The ranks, this one among them.
    """

    group: Group

    def __str__(self) -> str:
        return f"rank {self.group.rank} of {self.group.size}"


class WholeModel:
    """The parts of a model that one process has alone.

    Args:
        opened: The checkpoint.

    Attributes:
        tensors: In the kernels' order.
        weights: Their shapes.
        rank_experts: None.
    """

    rank_experts: Sequence[RankExperts] = ()

    def __init__(self, opened: OpenedCheckpoint) -> None:
        self.tensors = arrange(opened.tensors, opened.weights)
        self.weights: WeightMap = opened.weights

    def linear(self, weights: LinearWeights, linear: Linear) -> Linear:
        """Return the linear."""
        return linear

    def vocabulary(self, linear: Linear) -> Linear:
        """Return the linear."""
        return linear

    def experts(self, moe: MoEConfig, make: MakeExperts) -> tuple[MixedExperts, Sequence[int]]:
        """Return all experts of a layer, and their numbers."""
        return make(range(moe.num_experts), {}), range(moe.num_experts)

    def places(self, places: Places) -> Places:
        """Return the places."""
        return places


class RankModel:
    """The parts of a model that one rank has.

    Args:
        backend: Computes.
        opened: The checkpoint.
        shard: Which rank, of how many.

    Attributes:
        tensors: The rank's rows, in the kernels' order.
        weights: Their shapes; its configuration is the rank's.
        rank_experts: Those made by :meth:`experts`.

    Raises:
        ConfigError: The model cannot be divided that far.
    """

    def __init__(self, backend: Backend, opened: OpenedCheckpoint, shard: Shard) -> None:
        self._backend, self._group, self._scratch = backend, shard.group, Scratch(backend)
        self.rank_experts: list[RankExperts] = []
        self._shares = find_shares(opened.config, shard.group.size)
        share = self._shares[shard.group.rank]

        def keeps_whole(linear: LinearWeights) -> bool:
            return _is_rotated(opened, linear)

        self._keeps_whole = keeps_whole
        self.weights = ShareWeights(opened.weights, share, keeps_whole)
        self._rows = own_rows(self.weights, keeps_whole)
        self.tensors = arrange(opened.tensors, opened.weights, self._rows.kept, self._rows.outputs)
        self._gathered = self._find_gathered()
        if has_whole_attention(opened.config, shard.group.size) and shard.group.rank == 0:
            log.info(
                "each rank attends with all heads, which are fewer than ranks or normalised "
                "together: only the other matrices are divided"
            )

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
        modules, rows = weights.modules, self._rows.linears.get(weights.modules)
        if rows is None:
            return linear
        stays_whole = self._keeps_whole(weights)
        if modules in self._gathered:
            outputs = None if stays_whole else [len(share.outputs) for share in self._shares]
            inputs = self._gathered[modules]
            return GatheredLinear(self._group, linear, self._scratch, inputs, outputs)
        return OwnOutputs(linear, self._scratch, rows) if stays_whole else linear

    def vocabulary(self, linear: Linear) -> Linear:
        """Return embedding or head of this rank's tokens as one of all."""
        tokens = [share.tokens for share in self._shares]
        return VocabularyLinear(self._group, linear, self._scratch, tokens)

    def experts(self, moe: MoEConfig, make: MakeExperts) -> tuple[MixedExperts, Sequence[int]]:
        """Return experts of a layer that find the others', and the numbers of this rank's."""
        placement = even_placement(moe.num_experts, self._group.size)
        made = RankExperts(self._backend, self._group, self._scratch, placement, make)
        self.rank_experts.append(made)
        return made, placement.of(self._group.rank)

    def places(self, places: Places) -> Places:
        """Return where adapters are added, each with the rows that this rank has of it."""
        whole = self.weights.whole
        divided = {name.removesuffix(".weight") for name in (*self._rows.kept, *self._rows.outputs)}
        rows = {m: own for m, own in self._rows.linears.items() if divided.issuperset(m)}
        rows[adaptable_head(whole).modules] = rows[whole.head().modules]
        return {
            modules: replace(place, kept=rows.get(modules)) if not place.embeds else place
            for modules, place in places.items()
        }


def _is_rotated(opened: OpenedCheckpoint, linear: LinearWeights) -> bool:
    """Tell whether outputs are mixed with each other after they are computed."""
    for module in linear.modules:
        name = f"{module}.weight"
        entry = opened.tensors.entry(name) if name in opened.tensors.names else None
        if isinstance(entry, MatrixEntry) and entry.form.rotation is not None:
            return True
    return False

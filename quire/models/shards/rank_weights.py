"""The tensors of a rank, known before any is read."""

from __future__ import annotations

from dataclasses import dataclass

from quire.checkpoints.tensor_source import NamedTensors
from quire.core.model.model_config import ModelConfig
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.shards.cuts import find_cuts
from quire.models.shards.share_weights import ShareWeights
from quire.models.shards.shares import find_shares
from quire.models.weight_map import WeightMap
from quire.quantization.quantization_plan import QuantizationPlan


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank of several, and the rule that divides a model over them.

    Attributes:
        rank, size: Number of this rank, and of all ranks.
        exact: Whether every sum is formed by one rank, as in
            :class:`~quire.models.shards.rank_model.Shard`.
        experts: Division of the experts over ranks.
    """

    rank: int
    size: int
    exact: bool = True
    experts: ExpertDivision = ExpertDivision()

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return the configuration of the rank's layers; an MLP's share may still end elsewhere.

        Raises:
            ConfigError: The model cannot be divided that far.
        """
        return find_shares(whole, self.size, experts=self.experts)[self.rank].config(whole)

    def weights(
        self, tensors: NamedTensors, weights: WeightMap, plan: QuantizationPlan
    ) -> ShareWeights:
        """Return the tensors of the rank.

        Args:
            tensors, weights: The checkpoint's.
            plan: The plan of what is rounded when the checkpoint is loaded.

        Raises:
            ConfigError: The model cannot be divided that far.
        """
        cuts = find_cuts(tensors, weights, plan, self.size, self.exact)
        shares = find_shares(weights.config, self.size, cuts.unit, self.experts)
        return ShareWeights(weights, shares[self.rank], cuts)

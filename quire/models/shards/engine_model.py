"""What one of several engines that share experts makes of a checkpoint: all but others' experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.core.errors import ConfigError
from quire.core.model_config import ModelConfig
from quire.kernels.backend import Backend, MixedExperts
from quire.layers.engine_experts import EngineExperts, Siblings
from quire.layers.expert_placement import ExpertPlacement, even_placement
from quire.layers.own_experts import OwnExperts
from quire.layers.parallel_linear import Scratch
from quire.models.adapters.adapted_parts import AdaptedParts
from quire.models.adapters.places import Places
from quire.models.expert_maker import ExpertMaker
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.rank_model import WholeModel
from quire.models.tensor_source import NamedTensors
from quire.models.weight_map import MLPWeights, WeightMap
from quire.quantization.plan import QuantizationPlan


class EngineWeights(WeightMap):
    """The tensors of an engine that has some experts alone.

    Args:
        whole: Of the model.
        numbers: Of these experts.
    """

    def __init__(self, whole: WeightMap, numbers: Sequence[int]) -> None:
        super().__init__(whole.config, whole.names, whole.layers)
        self._numbers = frozenset(numbers)

    def mlps(self, layer: int) -> list[MLPWeights]:
        """Those that it has, experts first."""
        mlp = self.mlp(layer)
        own = [expert for n, expert in enumerate(self.experts(layer)) if n in self._numbers]
        return [*own, *([] if mlp is None else [mlp])]


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """Which of several engines.

    Attributes:
        number, size: This one, of how many.
    """

    number: int
    size: int

    def placement(self, config: ModelConfig) -> ExpertPlacement:
        """Return which engine has which experts.

        Raises:
            ConfigError: The model has none.
        """
        if config.moe is None:
            raise ConfigError(
                "[parallel] --enable-expert-parallel with --data-parallel-size must have a mixture "
                f"of experts; got {config.architecture}. Leave -ep out."
            )
        return even_placement(config.moe.num_experts, self.size)

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Return what its layers look like: as all of them."""
        return whole

    def weights(
        self, tensors: NamedTensors, weights: WeightMap, plan: QuantizationPlan
    ) -> EngineWeights:
        """Return its tensors."""
        return EngineWeights(weights, self.placement(weights.config).of(self.number))


@dataclass(frozen=True, slots=True)
class EngineShard:
    """That engines of a model have some experts each.

    Attributes:
        siblings: They.
    """

    siblings: Siblings

    @property
    def part(self) -> ExpertPart:
        """The same without what reaches the others."""
        return ExpertPart(self.siblings.number, self.siblings.size)

    def model(
        self, backend: Backend, opened: OpenedCheckpoint, plan: QuantizationPlan, adapts: bool
    ) -> EngineModel:
        """Return the parts of a model that this engine has."""
        return EngineModel(backend, opened, self.siblings, self.part)

    def __str__(self) -> str:
        return f"experts of engine {self.part.number} of {self.part.size}"


class EngineModel(WholeModel):
    """The parts of a model that one of several engines has: all but the experts of others.

    Args:
        backend: Computes.
        opened: The checkpoint.
        siblings: The engines.
        part: This one.

    Raises:
        ConfigError: The model has no experts.
    """

    def __init__(
        self, backend: Backend, opened: OpenedCheckpoint, siblings: Siblings, part: ExpertPart
    ) -> None:
        super().__init__(opened)
        self._backend, self._siblings, self._scratch = backend, siblings, Scratch(backend)
        self._placement = part.placement(opened.config)
        self._numbers = self._placement.of(part.number)
        self.weights = EngineWeights(opened.weights, self._numbers)

    def experts(self, maker: ExpertMaker) -> tuple[MixedExperts, Sequence[int]]:
        """Return experts of a layer, and the numbers of those that this engine has."""
        unadapted = replace(maker, adapted=AdaptedParts(self._backend, {}))
        own = OwnExperts(self._backend, unadapted.stack, self._numbers)
        made = EngineExperts(self._backend, self._siblings, self._scratch, self._placement, own)
        return made, self._numbers

    def places(self, places: Places) -> Places:
        """Return where adapters are added: not to experts, of which others have some."""
        return {modules: place for modules, place in places.items() if not place.is_expert}

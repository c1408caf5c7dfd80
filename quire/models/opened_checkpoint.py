"""A checkpoint that is open: its contents, and the tensor of each weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quire.checkpoints.tensor_source import TensorSource
from quire.core.model.model_config import ModelConfig
from quire.models.stage import Stage
from quire.models.weight_map import WeightMap


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint whose tensors are those of its model.

    Attributes:
        path: A folder or a GGUF file.
        config: The model's configuration, with the dtype that weights will be held in.
        keeps_types: Whether floats are held as they are stored, of several types.
        tensors, weights: The checkpoint's tensors, and the weights that they are.
        max_model_len: Longest context served, in tokens.
        stage: Stage whose layers are taken; None for all layers.
    """

    path: Path
    config: ModelConfig
    keeps_types: bool
    tensors: TensorSource
    weights: WeightMap
    max_model_len: int
    stage: Stage | None = None

    def of_stage(self, stage: Stage) -> OpenedCheckpoint:
        """Return this checkpoint for a decoder of a stage's layers."""
        return replace(self, weights=self.weights.of_layers(stage.layers), stage=stage)

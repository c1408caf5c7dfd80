"""A checkpoint that is open: what is in it, and which tensor is which weight."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from quire.core.model_config import ModelConfig
from quire.models.stage import Stage
from quire.models.tensor_source import TensorSource
from quire.models.weight_map import WeightMap


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint whose tensors are those of its model.

    Attributes:
        path: A folder or a GGUF file.
        config: Its dtype is the one that weights will be held in.
        keeps_types: Floats are held as they are stored, of several types.
        tensors, weights: What is there, and which goes where.
        max_model_len: Longest context served, in tokens.
        stage: Which layers are taken of it; None for all.
    """

    path: Path
    config: ModelConfig
    keeps_types: bool
    tensors: TensorSource
    weights: WeightMap
    max_model_len: int
    stage: Stage | None = None

    def of_stage(self, stage: Stage) -> OpenedCheckpoint:
        """Return the same for a decoder of some layers."""
        return replace(self, weights=self.weights.of_layers(stage.layers), stage=stage)

"""A checkpoint's tensors under the names that its family gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quire.checkpoints.tensor_source import TensorSource, open_source
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.models.config.registry import get_family
from quire.models.weight_map import WeightMap


def family_names(config: ModelConfig) -> WeightNames:
    """Return what the family of a model calls its tensors."""
    return get_family(config.architecture).weight_names(config)


def open_tensors(path: Path, config: ModelConfig) -> TensorSource:
    """Open a folder of safetensors or a GGUF file; ``config`` was read from the same path.

    Raises:
        ModelLoadError: The weights are missing or damaged.
    """
    return open_source(path, config, family_names(config))


def stored_names(source: TensorSource, config: ModelConfig) -> WeightNames:
    """Return what a checkpoint calls the tensors of its model."""
    return source.weight_names(config, family_names(config))


def map_weights(source: TensorSource, config: ModelConfig) -> WeightMap:
    """Return which tensor of ``source`` is which weight of the model.

    A matrix that is embedding and head at once may be stored under either name.
    """
    names = stored_names(source, config)
    stored = source.names
    is_stored = {name: f"{name}.weight" in stored for name in (names.embedding, names.head)}
    if config.tie_word_embeddings and is_stored == {names.embedding: False, names.head: True}:
        names = replace(names, embedding=names.head)
    return WeightMap(config, names)

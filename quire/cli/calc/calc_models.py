"""Shapes and sizes of models for ``quire calc``: by a model's name, or from its files."""

from __future__ import annotations

from pathlib import Path

import click

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.named_shapes import (
    NAMED_SHAPES,
    REPOSITORY_SHAPES,
    NamedShape,
    parse_parameters,
)
from quire.planner.parallel_costs import SplitShape


def stated_parameters(model: str) -> int | None:
    """Return the number of parameters that MODEL states, such as 70B; None where it is a model."""
    count = parse_parameters(model)
    return None if count is None or Path(model).exists() else count


def named_shape(model: str) -> NamedShape | None:
    """Return the shape of a model of the table, the catalogue or the hub; None of any other."""
    from quire.store.named_models import named_model

    named = named_model(model)
    return NAMED_SHAPES.get(model.lower()) or REPOSITORY_SHAPES.get(
        model if named is None else named.floats
    )


def num_parameters(model: str) -> int:
    """Return the number of weights of a named model, or of a checkpoint of floats.

    Raises:
        click.UsageError: The model does not exist, or its files do not tell.
    """
    shape = named_shape(model)
    if shape is not None:
        return shape.num_parameters
    from quire.checkpoints.quantized.quantization_config import read_quantization
    from quire.store.model_details import known_details

    path = checkpoint(model)
    count = known_details(path).parameters
    packed = not path.is_file() and read_quantization(path) is not None
    if packed or not count:
        raise click.UsageError(
            "MODEL must have weights that are floats, or be a number such as 8B; got "
            f"{model}, {'which is quantized' if packed else 'which has none'}."
        )
    return count


def weight_bytes(model: str, dtype: str | None) -> int:
    """Return what the weights of a named model or a checkpoint take in memory.

    Without ``dtype``, those of the catalogue take what their file does.
    """
    from quire.store.named_models import named_model

    shape, named = named_shape(model), named_model(model)
    if named is not None and dtype is None:
        return named.nbytes
    if shape is not None:
        return shape.weight_bytes(dtype or "bfloat16")
    from quire.models.config.config_reader import read_model_config
    from quire.models.weight_bytes import expected_weight_bytes
    from quire.quantization.quantization_plan import create_plan
    from quire.settings.config import ModelOptions

    path = checkpoint(model)
    config = read_model_config(path)
    own = "float32" if config.dtype == "auto" else config.dtype
    plan = create_plan(ModelOptions())
    return expected_weight_bytes(path, config, dtype or own, plan, config.max_position_embeddings)


def kv_spec(model: str, dtype: str) -> KVCacheSpec:
    """Return the KV cache's shape of a named model or a checkpoint."""
    shape = named_shape(model)
    if shape is not None:
        return shape.kv_spec(dtype)
    from quire.models.config.config_reader import read_model_config

    return read_model_config(checkpoint(model)).kv_cache_spec(16, dtype)


def checkpoint(model: str) -> Path:
    """Return the folder or GGUF file that a path or the name of a model on this machine means."""
    from quire.checkpoints.embedded import LISTED
    from quire.store.hub import near_models, resolve_model
    from quire.store.named_models import named_model
    from quire.store.store import Store

    path = Path(model)
    if not path.exists() and model not in LISTED:
        found = Store().find(model)
        if found is not None and found.path is not None:
            return found.path
        if named_model(model) is not None:
            raise click.UsageError(
                f"MODEL must be on this machine; got {model}. Run quire pull {model} first."
            )
        raise click.UsageError(
            f"MODEL must be a folder, a GGUF file, a name that quire list --catalogue shows, or "
            f"one of {', '.join(NAMED_SHAPES)}; got {model}.{near_models(model)}"
        )
    # Who names the file that is read means its folder.
    return path.parent if path.name == "config.json" else resolve_model(model)


def split_shape(model: str) -> SplitShape:
    """Return what counts of a named model or a checkpoint when it is divided."""
    shape = named_shape(model)
    if shape is not None:
        return SplitShape.of_named(shape)
    from quire.models.config.config_reader import read_model_config

    return SplitShape.of_config(read_model_config(checkpoint(model)))

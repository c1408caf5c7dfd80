"""Places in a GGUF file of a checkpoint's tensors; no tensor is read here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from quire.checkpoints.gguf.gguf_checkpoint import HEADS, KEY_HEADS, VALUE_HEADS, row_order
from quire.checkpoints.gguf.gguf_names import gguf_family
from quire.checkpoints.latent_rows import heads_apart
from quire.core.model.model_config import ModelConfig
from quire.models.family_tensors import family_names
from quire.models.weight_map import WeightMap

_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class GgufPlace:
    """A tensor of the file, or one expert's share of it, that holds rows of one of ours.

    Attributes:
        name: Name in the file.
        shape: Shape in the file, of all experts.
        order: Indices of our rows that it holds, in its order; None for all as they are.
        transposed: Number of equal parts of its rows, each of which is transposed; 0: none is.
    """

    name: str
    shape: tuple[int, ...]
    order: np.ndarray | None = None
    transposed: int = 0


def file_config(config: ModelConfig) -> ModelConfig:
    """Return the model as a file has it: positions from the first that is used, no pooler.

    A file has a pooler as a part of what makes classes.
    """
    return replace(
        config,
        learned_positions=config.learned_positions - config.position_offset,
        position_offset=0,
        pooler=config.pooler and config.classifier is not None,
    )


def find_places(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, GgufPlace]]:
    """Yield our tensors and their places: both maps have the same uses in the same order.

    A tensor of ours that the file has in several is yielded once for each.

    Args:
        config: Configuration of the checkpoint.
        shapes: Shapes of our tensors, in the order of their :class:`WeightMap`.
    """
    names = gguf_family(config.architecture).weight_names(config)
    stored = iter(WeightMap(file_config(config), names).shapes().items())
    # A square matrix looks the same either way, so the family decides, not the shape.
    family = family_names(config)
    for name, ours in shapes.items():
        gguf_name, shape = next(stored)
        in_layer = gguf_name.startswith("blk.") and len(ours) == 2
        transposed = int(family.linear_is_transposed and in_layer)
        if gguf_name == f"{names.positions}.weight":
            yield name, GgufPlace(gguf_name, shape, np.arange(config.position_offset, ours[0]))
        elif gguf_name.endswith(HEADS):
            yield from ((name, place) for place in _latent_heads(config, gguf_name))
        elif transposed or shape == ours:
            order = row_order(gguf_name, config)
            order = None if order is None else np.argsort(order)
            yield name, GgufPlace(*_of_all_experts(config, gguf_name, shape), order, transposed)
        else:
            begin = 0
            while begin < ours[0]:
                rows = np.arange(begin, begin + shape[0])
                yield name, GgufPlace(*_of_all_experts(config, gguf_name, shape), rows)
                begin += shape[0]
                if begin < ours[0]:
                    gguf_name, shape = next(stored)
    assert next(stored, None) is None, "tensors without a source"


def _of_all_experts(
    config: ModelConfig, name: str, shape: tuple[int, ...]
) -> tuple[str, tuple[int, ...]]:
    match = _EXPERT.fullmatch(name)
    if match is None:
        return name, shape
    assert config.moe is not None
    return f"{match[1]}_exps.{match[3]}", (config.moe.num_experts, *shape)


def _latent_heads(config: ModelConfig, name: str) -> list[GgufPlace]:
    latent, heads = config.latent, config.num_heads
    assert latent is not None
    block, (keys, values) = name.removesuffix(HEADS), heads_apart(config)
    return [
        GgufPlace(block + KEY_HEADS, (heads, latent.rank, latent.key_dim), keys, heads),
        GgufPlace(block + VALUE_HEADS, (heads, latent.value_dim, latent.rank), values),
    ]

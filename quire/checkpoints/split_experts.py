"""Experts that a checkpoint stores as one tensor, taken apart: a tensor of ours for each matrix.

E experts, D model dim, M width of an expert; G groups of columns that share a scale.

Layouts: (E, 2 M, D) and (E, D, M), or (E, D, 2 M) and (E, M, D) transposed; rows of gate and up one
after the other or in turn; biases (E, 2 M) and (E, D). MXFP4's blocks (E, rows, G, 16) and scales
(E, rows, G), of OpenAI's gpt-oss, are given as ``weight_packed`` and ``weight_scale`` of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.expert_share import ExpertShare
from quire.checkpoints.weight_names import FusedExperts, WeightNames
from quire.core.errors import WeightMismatchError
from quire.core.model.model_config import ModelConfig

#: Endings of MXFP4's parts, and of those that we take them as.
MXFP4_PARTS = {"_blocks": "weight_packed", "_scales": "weight_scale"}


def split_experts(stored: Checkpoint, config: ModelConfig, family: WeightNames) -> Checkpoint:
    """Return a checkpoint with a tensor for each expert; itself where it has no others.

    Args:
        stored: The checkpoint.
        config: The model's configuration.
        family: The names that the model's family gives the tensors.

    Raises:
        WeightMismatchError: A tensor of all experts has a shape that is not theirs.
    """
    names, shares = stored.weight_names(config, family), dict[str, ExpertShare]()
    for layer in range(config.num_layers):
        if config.layer_moe(layer) is None:
            continue
        prefix = names.layer.format(layer=layer)
        for fused in names.fused_experts:
            for modules, base in (
                (names.expert_gate_up, fused.gate_up),
                ((names.expert_down,), fused.down),
            ):
                own = [prefix + module for module in modules]
                shares |= _shares(stored, config, fused, own, prefix + base)
            shares |= _renamed(stored, prefix + fused.router, prefix + names.router)
    return stored.with_shares(shares) if shares else stored


def _renamed(stored: Checkpoint, module: str, ours: str) -> Iterator[tuple[str, ExpertShare]]:
    """Yield a router's tensors under our names, those that are there."""
    every = slice(None)
    for part in ("weight", "bias"):
        name = f"{module}.{part}"
        if module != ours and name in stored.names:
            entry = stored.entry(name)
            found = name, every, every, False, entry.dtype, entry.shape, entry.nbytes
            yield f"{ours}.{part}", ExpertShare(*found)


def _shares(
    stored: Checkpoint, config: ModelConfig, fused: FusedExperts, modules: list[str], base: str
) -> Iterator[tuple[str, ExpertShare]]:
    """Yield names and shares of the tensors ``base`` and an ending, those that are there."""
    assert config.moe is not None
    endings = {fused.weight: "weight", fused.bias: "bias", **MXFP4_PARTS}
    for ending, part in endings.items():
        name = base + ending
        if name not in stored.names:
            continue
        entry = stored.entry(name)
        transposed = fused.transposed and part == "weight"
        num_dims = {"bias": 2, "weight_packed": 4}.get(part, 3)
        outputs = entry.shape[-1 if transposed else 1] if len(entry.shape) == num_dims else 0
        count = len(modules)
        if outputs == 0 or entry.shape[0] != config.moe.num_experts or outputs % count:
            rule = f"{num_dims} sizes, {config.moe.num_experts} first, outputs of {count} matrices"
            raise WeightMismatchError(
                f"[load] {stored.path}: {name} must have {rule}; got {entry.shape}. Check "
                "that config.json and weights belong together."
            )
        size = outputs // count
        inputs = math.prod(entry.shape[1:]) // outputs
        shape = (size,) if part == "bias" else (size, inputs)
        nbytes = entry.nbytes // (config.moe.num_experts * count)
        for number, module in enumerate(modules):
            rows = slice(number * size, (number + 1) * size)
            if fused.interleaved:
                rows = slice(number, None, count)
            for expert in range(config.moe.num_experts):
                share = ExpertShare(name, expert, rows, transposed, entry.dtype, shape, nbytes)
                yield f"{module.format(expert=expert)}.{part}", share

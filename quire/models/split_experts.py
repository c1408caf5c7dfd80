"""Experts that a checkpoint stores as one tensor, taken apart: a tensor of ours for each matrix.

E experts, D model dim, M width of an expert; G groups of columns that share a scale.

Layouts: (E, 2 M, D) and (E, D, M), or (E, D, 2 M) and (E, M, D) transposed; rows of gate and up one
after the other or in turn; biases (E, 2 M) and (E, D). MXFP4's blocks (E, rows, G, 16) and scales
(E, rows, G), of OpenAI's gpt-oss, are given as ``weight_packed`` and ``weight_scale`` of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.errors import WeightMismatchError
from quire.core.model_config import ModelConfig
from quire.kernels.host_tensor import HostTensor
from quire.models.checkpoint import Checkpoint
from quire.models.safetensors_file import TensorEntry
from quire.models.weight_names import FusedExperts, WeightNames

#: Endings of MXFP4's parts, and of those that we take them as.
MXFP4_PARTS = {"_blocks": "weight_packed", "_scales": "weight_scale"}


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """What an expert's matrix or bias has of a stored tensor.

    Attributes:
        stored: The tensor's name.
        expert: Which of E.
        rows: Which outputs.
        is_transposed: Outputs are the last dim.
        dtype: As safetensors names it.
        shape: Of the share.
        nbytes: Of the share.
    """

    stored: str
    expert: int
    rows: slice
    is_transposed: bool
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """Cut the share out; a copy where it is not in one piece."""
        whole = tensor[self.expert]
        outputs = whole.T if self.is_transposed else whole
        return np.ascontiguousarray(outputs[self.rows]).reshape(self.shape)


class SplitExperts:
    """A checkpoint folder with a tensor for each expert; see :class:`Checkpoint`.

    Args:
        stored: The folder's tensors.
        shares: What is cut out of them, by name.
    """

    def __init__(self, stored: Checkpoint, shares: Mapping[str, ExpertShare]) -> None:
        self._stored, self._shares = stored, shares
        cut = {share.stored for share in shares.values()}
        self._names = (stored.names - cut) | set(shares)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._stored.path

    @property
    def names(self) -> set[str]:
        """Names of all tensors, those of experts by expert."""
        return self._names

    @property
    def is_arranged(self) -> bool:
        """No: rows are as the family stores them."""
        return False

    @property
    def mixes_types(self) -> bool:
        """No: all matrices have the type of the configuration, or are rounded to it."""
        return False

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return what the tensors are called."""
        return self._stored.weight_names(config)

    def notices(self) -> list[str]:
        """Return what the checkpoint says."""
        return self._stored.notices()

    def entry(self, name: str) -> TensorEntry | ExpertShare:
        """Return type, shape and size of a tensor."""
        return self._shares.get(name) or self._stored.entry(name)

    def tensor(self, name: str) -> HostTensor:
        """Return a tensor of floats; its pages stay resident until :meth:`release`."""
        share = self._shares.get(name)
        if share is None:
            return self._stored.tensor(name)
        whole = self._stored.tensor(share.stored)
        return HostTensor(name, whole.dtype, share.of(whole.array))

    def array(self, name: str) -> np.ndarray:
        """Return the elements of a tensor, of a part of a quantized matrix as they are."""
        share = self._shares.get(name)
        if share is None:
            return self._stored.array(name)
        return share.of(self._stored.array(share.stored))

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        share = self._shares.get(name)
        self._stored.release(name if share is None else share.stored)


def split_experts(stored: Checkpoint, config: ModelConfig) -> Checkpoint | SplitExperts:
    """Return a checkpoint with a tensor for each expert; itself where it has no others.

    Raises:
        WeightMismatchError: A tensor of all experts has a shape that is not theirs.
    """
    names, shares = stored.weight_names(config), dict[str, ExpertShare]()
    for layer in range(config.num_layers):
        if config.layer_moe(layer) is not None:
            for fused in names.fused_experts:
                for modules, base in (
                    (names.expert_gate_up, fused.gate_up),
                    ((names.expert_down,), fused.down),
                ):
                    prefix = names.layer.format(layer=layer)
                    own = [prefix + module for module in modules]
                    shares |= _shares(stored, config, fused, own, prefix + base)
    return SplitExperts(stored, shares) if shares else stored


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

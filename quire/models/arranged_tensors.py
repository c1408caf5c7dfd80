"""Tensors of a checkpoint put in the order and the form that kernels take, when they are read.

R rotated elements of a head of H; N query heads, K KV heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from quire.checkpoints.latent_rows import neighbours_apart
from quire.checkpoints.matrix_rows import (
    Picks,
    Tensor,
    pick_columns,
    pick_inputs,
    pick_outputs,
    pick_rows,
)
from quire.checkpoints.tensor_source import TensorSource
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.kernels.matrices.host_tensor import HostTensor
from quire.models.weight_map import WeightMap

Change = Callable[[Tensor], Tensor]


class ChangedTensors(ABC):
    """A checkpoint some of whose tensors are changed, none in its shape and size.

    Args:
        stored: The checkpoint's tensors as they are.
    """

    def __init__(self, stored: TensorSource) -> None:
        self._stored = stored
        self.path, self.names = stored.path, stored.names
        self.is_arranged, self.mixes_types = stored.is_arranged, stored.mixes_types
        self.weight_names, self.notices = stored.weight_names, stored.notices
        self.entry, self.release = stored.entry, stored.release

    @abstractmethod
    def tensor(self, name: str) -> Tensor:
        """Return a tensor, changed where it has to be."""


class ArrangedTensors(ChangedTensors):
    """A checkpoint whose tensors are as kernels take them.

    Args:
        stored: The checkpoint's tensors as they are.
        changes: Changes of tensors, by name.
    """

    def __init__(self, stored: TensorSource, changes: Mapping[str, Change]) -> None:
        super().__init__(stored)
        self._changes = changes
        self.is_arranged = True

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, changed where it has to be."""
        tensor = self._stored.tensor(name)
        change = self._changes.get(name)
        return tensor if change is None else change(tensor)


def arrange(stored: TensorSource, weights: WeightMap, picks: Picks | None = None) -> TensorSource:
    """Return a checkpoint's tensors as kernels take them; itself where they are so.

    Args:
        stored: The checkpoint.
        weights: Tensors of the checkpoint by their use.
        picks: Parts of them that are taken, in the kernels' order; all when None.
    """
    picks = picks or Picks()
    picked = dict(picks.rows)
    for module, order in row_orders(stored, weights).items():
        for name in (f"{module}.weight", f"{module}.bias"):
            picked[name] = order[picked[name]] if name in picked else order
    changes: dict[str, Change] = {}
    for change, parts in (
        (pick_rows, picked),
        (pick_outputs, picks.outputs),
        (pick_columns, picks.columns),
        (pick_inputs, picks.inputs),
    ):
        changes |= {name: partial(_change, change, part) for name, part in parts.items()}
    if not stored.is_arranged:
        _arrange_norms(weights, changes)
    return ArrangedTensors(stored, changes) if changes else stored


def _change(pick: Callable[[Tensor, Any], Tensor], part: object, tensor: Tensor) -> Tensor:
    return pick(tensor, part)


def _arrange_norms(weights: WeightMap, changes: dict[str, Change]) -> None:
    """Add what is done to the weights of norms."""
    config = weights.config
    turned = _turned(config)
    if turned is not None:
        for layer in range(config.num_layers):
            for norm in weights.qk_norm(layer):
                name = f"{norm.module}.weight"
                changes[name] = _heads_in_order(turned, changes.get(name))
    if config.norm_offset:
        norms = [weights.final_norm()]
        for layer in range(config.num_layers):
            norms += weights.norms(layer)
            norms += weights.qk_norm(layer)
        for name in (f"{norm.module}.weight" for norm in norms):
            changes[name] = _added(config.norm_offset, changes.get(name))


def row_orders(stored: TensorSource, weights: WeightMap) -> dict[str, np.ndarray]:
    """Return, by module, which stored row each of its rows is as kernels take them.

    Modules whose rows stay where they are are left out.
    """
    return {} if stored.is_arranged else kernel_orders(weights)


def kernel_orders(weights: WeightMap) -> dict[str, np.ndarray]:
    """Return :func:`row_orders` of rows in a family's own order."""
    latent = weights.config.latent is not None
    orders = (_latent_orders if latent else _qkv_orders)(weights.config, weights.names)
    found: dict[str, np.ndarray | None] = {}
    for layer in range(weights.config.num_layers):
        linears = (
            [weights.queries(layer), weights.latents(layer)] if latent else [weights.qkv(layer)]
        )
        modules = [module for linear in linears for module in linear.modules]
        found |= dict(zip(modules, orders, strict=True))
    return {module: order for module, order in found.items() if order is not None}


def _latent_orders(config: ModelConfig, names: WeightNames) -> list[np.ndarray | None]:
    """Return the orders of rows of queries and latents, whose last R elements turn."""
    assert config.rope is not None
    if not config.rope.interleaved:
        return [None, None]
    return list(neighbours_apart(config))


def _qkv_orders(config: ModelConfig, names: WeightNames) -> list[np.ndarray | None]:
    """Return, for each matrix of ``qkv``, which stored row each of our rows is; None for its own.

    Ours are all queries, then all keys, then all values; their heads turn (i, i + R/2).
    """
    num, kv, size = config.num_heads, config.num_kv_heads, config.head_dim
    rows = np.arange((num + 2 * kv) * size).reshape(-1, size)
    parts = np.split(rows, [num, num + kv])
    if names.groups_qkv:
        groups = rows.reshape(kv, num // kv + 2, size)
        parts = [groups[:, :-2].reshape(num, size), groups[:, -2], groups[:, -1]]
    turned = _turned(config)
    if turned is not None:
        parts[:2] = [part[:, turned] for part in parts[:2]]
    if len(names.qkv) == 1:
        parts = [np.concatenate(parts)]
    orders = [part.reshape(-1) - part.min() for part in parts]
    return [None if (order == np.arange(len(order))).all() else order for order in orders]


def _turned(config: ModelConfig) -> np.ndarray | None:
    """Return which stored element of a query's or key's head each of ours is; None for its own."""
    if config.rope is None or not config.rope.interleaved:
        return None
    turned, rotated = np.arange(config.head_dim), config.rope.rotary_dim
    turned[:rotated] = turned[:rotated].reshape(-1, 2).T.reshape(-1)
    return turned


def _heads_in_order(order: np.ndarray, before: Change | None) -> Change:
    def change(tensor: Tensor) -> Tensor:
        values = (tensor if before is None else before(tensor)).float32()
        heads = values.reshape(-1, len(order))[:, order]
        return HostTensor(tensor.name, "float32", heads.reshape(values.shape))

    return change


def _added(offset: float, before: Change | None) -> Change:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor if before is None else before(tensor)
        values = changed.float32() + np.float32(offset)
        return HostTensor(tensor.name, "float32", values)

    return change

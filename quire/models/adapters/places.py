"""The linears of a model that adapters may be added to, by its checkpoint's headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from quire.layers.adapted_linear import AdapterPlace
from quire.models.arranged_tensors import row_orders
from quire.models.config_reader import read_model_config
from quire.models.tensor_source import map_weights, open_tensors
from quire.models.weight_map import LinearWeights, WeightMap


def adapter_place(weights: LinearWeights, orders: Mapping[str, np.ndarray]) -> AdapterPlace:
    """Return a linear as adapters see it; ``orders`` as of :func:`row_orders`."""
    own = tuple(orders.get(module) for module in weights.modules)
    return AdapterPlace(weights.modules, weights.rows, weights.columns, own)


def adaptable_linears(weights: WeightMap) -> list[LinearWeights]:
    """Return the linears that adapters may be added to: of attention, dense MLPs, and the head."""
    found = []
    for layer in range(weights.config.num_layers):
        found += [*weights.attention_inputs(layer), weights.attention_output(layer)]
        mlp = None if weights.config.layer_moe(layer) else weights.mlp(layer)
        found += mlp or ()
    tied = weights.config.tie_word_embeddings
    return [*found, weights.own_head() if tied else weights.head()]


def read_places(folder: Path) -> list[AdapterPlace]:
    """Return the places of a checkpoint; no weight is read.

    Raises:
        ModelLoadError: It cannot be read.
    """
    config = read_model_config(folder)
    tensors = open_tensors(folder, config)
    weights = map_weights(tensors, config)
    orders = row_orders(tensors, weights)
    return [adapter_place(linear, orders) for linear in adaptable_linears(weights)]

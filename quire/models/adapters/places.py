"""The places of a model that adapters may be added to, by its checkpoint's headers alone.

Adapters name modules as the family's own checkpoints do, whatever the file calls them. D model dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from quire.layers.adapted_linear import AdapterPlace
from quire.models.arranged_tensors import kernel_orders
from quire.models.config_reader import read_model_config
from quire.models.registry import get_family
from quire.models.tensor_source import TensorSource, map_weights, open_tensors
from quire.models.weight_map import LinearWeights, WeightMap

#: By the modules that are stored for a linear; a tied head has a name of its own.
Places = Mapping[tuple[str, ...], AdapterPlace]


def adaptable_linears(weights: WeightMap) -> list[LinearWeights]:
    """Return the linears that adapters may be added to: of attention, dense MLPs, and the head."""
    found = []
    for layer in range(weights.config.num_layers):
        found += [*weights.attention_inputs(layer), weights.attention_output(layer)]
        mlp = None if weights.config.layer_moe(layer) else weights.mlp(layer)
        found += mlp or ()
    return [*found, adaptable_head(weights)]


def adaptable_head(weights: WeightMap) -> LinearWeights:
    """Return the head under its own name."""
    return weights.own_head() if weights.config.tie_word_embeddings else weights.head()


def find_places(tensors: TensorSource, weights: WeightMap) -> Places:
    """Return the places of a checkpoint, the embedding last."""
    config, named = weights.config, weights
    if tensors.is_arranged:  # a GGUF file, which has names of its own
        named = WeightMap(config, get_family(config.architecture).weight_names(config))
    orders = kernel_orders(named)
    places = {
        stored.modules: AdapterPlace(
            modules=own.modules,
            rows=own.rows,
            columns=own.columns,
            orders=tuple(orders.get(module) for module in own.modules),
            stored=stored.modules,
            biased=stored.bias,
            transposed=stored.transposed,
        )
        for stored, own in zip(adaptable_linears(weights), adaptable_linears(named), strict=True)
    }
    vocabulary, embedding = (config.vocab_size, config.hidden_size), weights.embedding()
    head = adaptable_head(weights).modules
    places[head] = _of_vocabulary(places[head], weights.head().modules, vocabulary)
    own = named.names.embedding
    place = AdapterPlace((own,), (config.hidden_size,), config.vocab_size, (None,), embeds=True)
    places[embedding.modules] = _of_vocabulary(place, embedding.modules, vocabulary)
    return places


def read_places(path: Path) -> list[AdapterPlace]:
    """Return the places of a checkpoint; no weight is read.

    Raises:
        ModelLoadError: It cannot be read.
    """
    config = read_model_config(path)
    tensors = open_tensors(path, config)
    return list(find_places(tensors, map_weights(tensors, config)).values())


def _of_vocabulary(
    place: AdapterPlace, stored: tuple[str, ...], whole: tuple[int, int]
) -> AdapterPlace:
    return replace(place, stored=stored, whole=whole)

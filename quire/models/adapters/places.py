"""The places of a model that adapters may be added to, by its checkpoint's headers alone.

Adapters name modules as the family's own checkpoints do, whatever the file calls them; experts and
routers also as Transformers does, which holds a layer's experts together. D model dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from quire.checkpoints.tensor_source import TensorSource
from quire.layers.adapters.adapter_slots import AdapterPlace, StackedExperts
from quire.models.arranged_tensors import kernel_orders
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import family_names, map_weights, open_tensors
from quire.models.weight_map import LinearWeights, NormWeights, WeightMap

#: By the modules that are stored for a part; a tied head has a name of its own.
Places = Mapping[tuple[str, ...], AdapterPlace]


def adaptable_linears(weights: WeightMap) -> list[LinearWeights]:
    """Return the linears that adapters may be added to: all but what latents become heads by."""
    found = []
    for layer in weights.layers:
        found += [*weights.attention_inputs(layer), weights.attention_output(layer)]
        found += [linear for mlp in weights.mlps(layer) for linear in mlp]
        found += weights.routing(layer)
    return [*found, adaptable_head(weights)] if weights.is_last else found


def adaptable_head(weights: WeightMap) -> LinearWeights:
    """Return the head under its own name."""
    return weights.own_head() if weights.config.tie_word_embeddings else weights.head()


def find_places(tensors: TensorSource, weights: WeightMap) -> Places:
    """Return the places of a checkpoint, the embedding last."""
    config, named = weights.config, weights
    if tensors.is_arranged:  # a GGUF file, which has names of its own
        names = family_names(config)
        named = WeightMap(config, names, weights.layers)
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
    for layer in weights.layers:
        _name_stacks(places, weights, named, layer)
    for stored, own in zip(_biased_norms(weights), _biased_norms(named), strict=True):
        place = AdapterPlace((own.module,), own.shape, 0, (None,), (stored.module,), biased=True)
        places[stored.module,] = place
    vocabulary, embedding = (config.vocab_size, config.hidden_size), weights.embedding()
    if weights.is_last:
        head = adaptable_head(weights).modules
        places[head] = _of_vocabulary(places[head], weights.head().modules, vocabulary)
    if not weights.is_first:
        return places
    place = AdapterPlace(
        modules=(named.names.embedding,),
        rows=(config.hidden_size,),
        columns=config.vocab_size,
        orders=(None,),
        transposed=True,
        embeds=True,
    )
    places[embedding.modules] = _of_vocabulary(place, embedding.modules, vocabulary)
    return places


def read_places(path: Path, layers: range | None = None) -> list[AdapterPlace]:
    """Return the places of a checkpoint, or of some of its layers; no weight is read.

    Raises:
        ModelLoadError: The checkpoint cannot be read.
    """
    config = read_model_config(path)
    tensors = open_tensors(path, config)
    weights = map_weights(tensors, config)
    own = weights if layers is None else weights.of_layers(layers)
    return list(find_places(tensors, own).values())


def _name_stacks(
    places: dict[tuple[str, ...], AdapterPlace], weights: WeightMap, named: WeightMap, layer: int
) -> None:
    """Add the names that a layer's router and experts have where the latter are held together."""
    experts, fused = weights.experts(layer), named.names.fused_experts
    if not experts:
        return
    prefix = named.names.layer.format(layer=layer)
    router = weights.router(layer).modules
    aliases = tuple(prefix + kind.router for kind in fused if kind.router)
    places[router] = replace(places[router], aliases=aliases)
    for number, mlp in enumerate(experts):
        for linear, side in (mlp.gate_up, "gate_up"), (mlp.down, "down"):
            stacks = tuple(
                StackedExperts(
                    parameter=prefix + getattr(kind, side) + kind.weight,
                    expert=number,
                    count=len(experts),
                    interleaved=kind.interleaved,
                    transposed=kind.transposed,
                )
                for kind in fused
            )
            place = places[linear.modules]
            places[linear.modules] = replace(place, stacks=stacks, is_expert=True)


def _biased_norms(weights: WeightMap) -> Iterable[NormWeights]:
    """Return the norms that have biases, each once."""
    norms = [weights.end_norm()]
    for layer in weights.layers:
        norms += weights.norms(layer)
    return dict.fromkeys(norm for norm in norms if norm is not None and norm.bias)


def _of_vocabulary(
    place: AdapterPlace, stored: tuple[str, ...], whole: tuple[int, int]
) -> AdapterPlace:
    return replace(place, stored=stored, whole=whole)

"""Tensors of a model, with shapes: a :class:`ModelConfig` times a family's names.

D model dim, N query heads, K KV heads, H head dim, V vocabulary, M width of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import LatentConfig, ModelConfig

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Matrices that become one linear, stacked along the outputs.

    Attributes:
        modules: Names without ``.weight`` and ``.bias``.
        rows: Outputs of each matrix.
        columns: Inputs of each matrix.
        bias: Whether each has a bias.
        transposed: Whether they are stored (in, out).
    """

    modules: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    bias: bool = False
    transposed: bool = False

    def shapes(self) -> Shapes:
        """Yield name and shape of each tensor."""
        for module, rows in zip(self.modules, self.rows, strict=True):
            shape = (self.columns, rows) if self.transposed else (rows, self.columns)
            yield f"{module}.weight", shape
            if self.bias:
                yield f"{module}.bias", (rows,)


@dataclass(frozen=True, slots=True)
class NormWeights:
    """One norm.

    Attributes:
        module: Name without ``.weight`` and ``.bias``.
        shape: Shape of its weights.
        bias: Whether it has one (LayerNorm).
    """

    module: str
    shape: tuple[int, ...]
    bias: bool

    def shapes(self) -> Shapes:
        """Yield name and shape of each tensor."""
        yield f"{self.module}.weight", self.shape
        if self.bias:
            yield f"{self.module}.bias", self.shape


class MLPWeights(NamedTuple):
    """An MLP's linears.

    Attributes:
        gate_up: (2 M, D), or (M, D) where the MLP is not gated.
        down: (D, M).
    """

    gate_up: LinearWeights
    down: LinearWeights


class WeightMap:
    """The tensors of a model, by their use.

    Args:
        config: The whole model's configuration.
        names: Names of its tensors.
        layers: Consecutive layers of a stage; None for all.
    """

    def __init__(
        self, config: ModelConfig, names: WeightNames, layers: range | None = None
    ) -> None:
        self.config = config
        self.names = names
        self.layers = range(config.num_layers) if layers is None else layers

    def of_layers(self, layers: range) -> WeightMap:
        """Return the tensors of a stage."""
        return WeightMap(self.config, self.names, layers)

    def of_all_layers(self) -> WeightMap:
        """Return the tensors of all layers."""
        return WeightMap(self.config, self.names)

    @property
    def is_first(self) -> bool:
        """Whether it begins with the embedding."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends with the head."""
        return self.layers.stop == self.config.num_layers

    def embedding(self) -> LinearWeights:
        """(V, D)."""
        return self._vocabulary(self.names.embedding)

    def head(self) -> LinearWeights:
        """(V, D), the head's own matrix or the embedding's."""
        if self.config.tie_word_embeddings:
            return self.embedding()
        return replace(self._vocabulary(self.names.head), bias=self.config.head_bias)

    def own_head(self) -> LinearWeights:
        """(V, D), by the head's own name, under which a tied head is not stored."""
        return self._vocabulary(self.names.head)

    def final_norm(self) -> NormWeights:
        """(D,), before the head."""
        if self.names.next_norm:
            return self._norm(self._name(self.names.next_norm, self.config.num_layers - 1))
        return self._norm(self.names.final_norm)

    def attention_norm(self, layer: int) -> NormWeights | None:
        """(D,), before attention."""
        if self.names.next_norm and layer:
            return self._layer_norm(self.names.next_norm, layer - 1)
        if self.names.embedding_norm:
            return self._norm(self.names.embedding_norm)
        return self._layer_norm(self.names.attention_norm, layer)

    def attention_norm_after(self, layer: int) -> NormWeights | None:
        """(D,), after attention."""
        return self._layer_norm(self.names.attention_norm_after, layer)

    def mlp_norm(self, layer: int) -> NormWeights | None:
        """(D,), before the MLP; attention's norm where they share it."""
        return self._layer_norm(self.names.mlp_norm, layer)

    def mlp_norm_after(self, layer: int) -> NormWeights | None:
        """(D,), after the MLP."""
        return self._layer_norm(self.names.mlp_norm_after, layer)

    def norms(self, layer: int) -> list[NormWeights]:
        """Return the norms of a layer but those of heads, and but one that the stage before has."""
        is_handed_over = layer == self.layers.start and not self.is_first
        first = None if is_handed_over else self.attention_norm(layer)
        made = (
            first, self.attention_norm_after(layer),
            self.mlp_norm(layer), self.mlp_norm_after(layer),
        )  # fmt: skip
        return [norm for norm in dict.fromkeys(made) if norm is not None]

    def qk_norm(self, layer: int) -> tuple[NormWeights, ...]:
        """Norms of queries and of keys: two of (H,), or (N H,) and (K H,), or (N, H) and (K, H);
        none where a norm has no weights."""
        config = self.config
        if config.qk_norm in ("", "unit_heads"):
            return ()
        q_norm, k_norm = (self._name(n, layer) for n in (self.names.q_norm, self.names.k_norm))

        def norm(name: str, heads: int) -> NormWeights:
            shape = {
                "rms_of_heads": (config.head_dim,),
                "rms_of_rows": (heads * config.head_dim,),
                "layer_of_heads": (heads, config.head_dim),
            }[config.qk_norm]
            return NormWeights(name, shape, False)

        return norm(q_norm, config.num_heads), norm(k_norm, config.num_kv_heads)

    def sinks(self, layer: int) -> str:
        """Name of a layer's attention sinks (N,)."""
        return self._name(self.names.sinks, layer)

    def qkv(self, layer: int) -> LinearWeights:
        """((N + 2 K) H, D)."""
        config = self.config
        q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        rows = (q, kv, kv) if len(self.names.qkv) == 3 else (q + 2 * kv,)
        return self._linear(self.names.qkv, layer, rows, config.hidden_size, config.qkv_bias)

    def query_down(self, layer: int) -> LinearWeights | None:
        """(query rank, D) of latent attention; None where queries are made of the hidden state."""
        config, rank = self.config, self._latent.query_rank
        names = (self.names.query_down,)
        return self._linear(names, layer, (rank,), config.hidden_size, False) if rank else None

    def query_norm(self, layer: int) -> NormWeights:
        """(query rank,)."""
        shape = (self._latent.query_rank or 0,)
        return NormWeights(self._name(self.names.query_norm, layer), shape, False)

    def queries(self, layer: int) -> LinearWeights:
        """(N H, query rank) of latent attention, or (N H, D) where there is no rank."""
        config, rank = self.config, self._latent.query_rank
        names = (self.names.query_up if rank else self.names.queries,)
        rows = (config.num_heads * config.head_dim,)
        return self._linear(names, layer, rows, rank or config.hidden_size, False)

    def latents(self, layer: int) -> LinearWeights:
        """(r + R, D)."""
        rows = (self._latent.row_dim,)
        return self._linear((self.names.latents,), layer, rows, self.config.hidden_size, False)

    def latent_norm(self, layer: int) -> NormWeights:
        """(r,)."""
        name = self._name(self.names.latent_norm, layer)
        return NormWeights(name, (self._latent.rank,), False)

    def latent_heads(self, layer: int) -> LinearWeights:
        """(N (key dim + value dim), r): keys and values of each head."""
        latent, names = self._latent, (self.names.latent_heads,)
        rows = (self.config.num_heads * (latent.key_dim + latent.value_dim),)
        return self._linear(names, layer, rows, latent.rank, False)

    @property
    def _latent(self) -> LatentConfig:
        assert self.config.latent is not None, "latent attention"
        return self.config.latent

    def attention_inputs(self, layer: int) -> list[LinearWeights]:
        """Return the linears of a layer that come before its attention."""
        return [linear for stage in self.attention_stages(layer) for linear in stage]

    def attention_stages(self, layer: int) -> list[list[LinearWeights]]:
        """Return the same in the order of their inputs, those of one input together."""
        if self.config.latent is None:
            return [[self.qkv(layer)]]
        latents, queries, down = self.latents(layer), self.queries(layer), self.query_down(layer)
        return [[queries, latents]] if down is None else [[down, latents], [queries]]

    def inner_norms(self, layer: int) -> list[NormWeights]:
        """Return the norms that a layer has inside its attention."""
        if self.config.latent is None:
            return list(self.qk_norm(layer)) if self.config.qk_norm else []
        own = [self.query_norm(layer)] if self.config.latent.query_rank else []
        return [*own, self.latent_norm(layer)]

    def attention_output(self, layer: int) -> LinearWeights:
        """(D, N H), or of as many columns as attention gives."""
        config = self.config
        names, rows = (self.names.attention_output,), (config.hidden_size,)
        return self._linear(names, layer, rows, config.attended_dim, config.output_bias)

    def router(self, layer: int) -> LinearWeights:
        """(experts, D)."""
        assert self.config.moe is not None
        moe, names = self.config.moe, (self.names.router,)
        rows = (moe.num_experts,)
        return self._linear(names, layer, rows, self.config.hidden_size, moe.router_bias)

    def choice_bias(self, layer: int) -> str:
        """Name of the bias (experts,) that only chooses."""
        return self._name(self.names.choice_bias, layer)

    def shared_gate(self, layer: int) -> LinearWeights:
        """(1, D), of the experts that are always on."""
        names = (self.names.shared_gate,)
        return self._linear(names, layer, (1,), self.config.hidden_size, False)

    def experts(self, layer: int) -> list[MLPWeights]:
        """Return the experts that a router chooses from; none in a layer without."""
        moe, names = self.config.layer_moe(layer), self.names
        if moe is None:
            return []
        made, width, bias = [], moe.intermediate_size, moe.expert_bias
        for expert in range(moe.num_experts):
            given = names.expert_gate_up, names.expert_down, width, bias, expert
            made.append(self._mlp(layer, *given))
        return made

    def mlp(self, layer: int) -> MLPWeights | None:
        """Return the MLP that all tokens pass: a dense layer's, or of experts always on."""
        config, names, moe = self.config, self.names, self.config.layer_moe(layer)
        if moe is None:
            width = config.intermediate_size
            return self._mlp(layer, names.gate_up, names.down, width, config.mlp_bias)
        if not moe.shared_size:
            return None
        return self._mlp(layer, names.shared_gate_up, names.shared_down, moe.shared_size, False)

    def mlps(self, layer: int) -> list[MLPWeights]:
        """Return all MLPs of a layer, experts first."""
        mlp = self.mlp(layer)
        return [*self.experts(layer), *([] if mlp is None else [mlp])]

    def pooler(self) -> LinearWeights:
        """(D, D), of an encoder's first state."""
        width = self.config.hidden_size
        return LinearWeights((self.names.pooler,), (width,), width, bias=True)

    def classifier(self) -> LinearWeights:
        """(classes, D)."""
        classifier = self.config.classifier
        assert classifier is not None
        rows, width = (len(classifier.labels),), self.config.hidden_size
        return LinearWeights((self.names.classifier,), rows, width, classifier.bias)

    def state_heads(self) -> list[LinearWeights]:
        """Return what pooled states go through; these stay floats."""
        pooler = [self.pooler()] if self.config.pooler else []
        return [*pooler, self.classifier()] if self.config.classifier else pooler

    def parts(self) -> list[LinearWeights | NormWeights]:
        """Return all linears and norms; a tied embedding is there twice.

        Pooled states are read where the first layers are.
        """
        parts: list[LinearWeights | NormWeights] = [self.embedding()] if self.is_first else []
        parts += [self.head()] if self.is_last else []
        norm = self.end_norm()
        parts += [] if norm is None else [norm]
        for layer in self.layers:
            parts += self.layer_parts(layer)
        return [*parts, *(self.state_heads() if self.is_first else ())]

    def end_norm(self) -> NormWeights | None:
        """(D,), after the last layer: the model's final norm, or the next stage's first norm."""
        return self.final_norm() if self.is_last else self.attention_norm(self.layers.stop)

    def layer_parts(self, layer: int) -> list[LinearWeights | NormWeights]:
        """Return the linears and norms of a layer."""
        first, *norms = self.norms(layer)
        inputs, output = self.attention_inputs(layer), self.attention_output(layer)
        linears = [linear for mlp in self.mlps(layer) for linear in mlp]
        inner, unrounded = self.inner_norms(layer), self.unrounded(layer)
        return [first, *inputs, output, *norms, *inner, *unrounded, *linears]

    def unrounded(self, layer: int) -> list[LinearWeights]:
        """Return linears of a layer that stay floats: what it routes by, and what keys and values
        are made of latents with."""
        heads = [] if self.config.latent is None else [self.latent_heads(layer)]
        return [*heads, *self.routing(layer)]

    def routing(self, layer: int) -> list[LinearWeights]:
        """Return the router of a layer and the gate of experts always on; none without experts."""
        moe = self.config.layer_moe(layer)
        if moe is None:
            return []
        return [self.router(layer), *([self.shared_gate(layer)] if moe.shared_gate else [])]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor of the model."""
        config = self.config
        shapes = dict(pair for part in self.parts() for pair in part.shapes())
        if config.learned_positions and self.is_first:
            shapes[self.positions()] = (config.learned_positions, config.hidden_size)
        if config.token_types and self.is_first:
            shapes[self.token_types()] = (config.token_types, config.hidden_size)
        for layer in self.layers:
            shapes |= self._further_shapes(layer)
        return shapes

    def layer_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return every tensor of a layer."""
        shapes = dict(pair for part in self.layer_parts(layer) for pair in part.shapes())
        return shapes | self._further_shapes(layer)

    def _further_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer that are no linear's or norm's."""
        config, moe = self.config, self.config.layer_moe(layer)
        shapes: dict[str, tuple[int, ...]] = {}
        if config.attention_sinks:
            shapes[self.sinks(layer)] = (config.num_heads,)
        if moe is not None and moe.choice_bias:
            shapes[self.choice_bias(layer)] = (moe.num_experts,)
        return shapes

    def positions(self) -> str:
        """Name of the learned positions (P, D)."""
        return f"{self.names.positions}.weight"

    def token_types(self) -> str:
        """Name of the table of texts that a token may belong to."""
        return f"{self.names.token_types}.weight"

    def _vocabulary(self, module: str) -> LinearWeights:
        return LinearWeights((module,), (self.config.vocab_size,), self.config.hidden_size)

    def _mlp(
        self,
        layer: int,
        gate_up: tuple[str, ...],
        down: str,
        width: int,
        bias: bool,
        expert: int = 0,
    ) -> MLPWeights:
        config = self.config
        rows = (width * (2 if config.gated_mlp else 1) // len(gate_up),) * len(gate_up)
        return MLPWeights(
            self._linear(gate_up, layer, rows, config.hidden_size, bias, expert),
            self._linear((down,), layer, (config.hidden_size,), width, bias, expert),
        )

    def _name(self, name: str, layer: int, expert: int = 0) -> str:
        return (self.names.layer + name).format(layer=layer, expert=expert)

    def _norm(self, module: str) -> NormWeights:
        config = self.config
        bias = config.norm == "layer_norm" and config.norm_bias
        return NormWeights(module, (config.hidden_size,), bias)

    def _layer_norm(self, name: str, layer: int) -> NormWeights | None:
        return self._norm(self._name(name, layer)) if name else None

    def _linear(
        self,
        names: tuple[str, ...],
        layer: int,
        rows: tuple[int, ...],
        columns: int,
        bias: bool,
        expert: int = 0,
    ) -> LinearWeights:
        modules = tuple(self._name(name, layer, expert) for name in names)
        return LinearWeights(modules, rows, columns, bias, self.names.linear_is_transposed)

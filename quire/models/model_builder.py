"""Tensors to a decoder's parts: each is read once, packed for the backend, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from quire.checkpoints.formats.stored_matrix import UnpackedMatrix
from quire.checkpoints.packed_weights_cache import PackedWeightsCache
from quire.checkpoints.quantized.input_rounding import with_fine_inputs
from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig, QueryScaling
from quire.core.model.moe_config import MoEConfig
from quire.kernels.attention_protocol import AttentionSpec, LatentSpec, LatentWeights, QKNorm
from quire.kernels.backend import Array, Backend, Linear, Weight
from quire.kernels.matrices.block_matrix import BlockMatrix
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.packed_weights import PackedWeights
from quire.layers.attention import HeadsMixing, LatentMixing, QueryRank
from quire.layers.decoder_layer import DecoderLayer, End, Layer, ParallelLayer
from quire.layers.logits_head import logits_head
from quire.layers.mlp import MLP, FeedForward, GatedMLP
from quire.layers.moe import MixtureOfExperts, SharedExperts
from quire.layers.norm import CarriedNorm, LayerNorm, Norm, RMSNorm, Unnormed
from quire.layers.rope import query_scales, rope_table_bytes, rope_tables
from quire.layers.state_head import StateHead
from quire.models.adapters.adapted_parts import AdaptedParts
from quire.models.adapters.places import adaptable_head, find_places
from quire.models.decoder import DecoderParts
from quire.models.expert_maker import ExpertMaker
from quire.models.input_embedding import InputEmbedding
from quire.models.matrix_forms import MatrixForms
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shards.rank_model import RankModel, Shard, WholeModel
from quire.models.shared_weights import LinearKey, RopeTables, SharedWeights
from quire.models.weight_map import LinearWeights, NormWeights
from quire.quantization.quantization_plan import QuantizationPlan, refuse_quantized
from quire.quantization.rounding_schemes import RoundingScheme, quantize
from quire.system.machine import read_machine

Progress = Callable[[int, int], None]

#: Bytes of tables that any machine has: to ask it takes longer than to make them.
_SMALL_TABLES = 16 << 20


class ModelBuilder:
    """Takes tensors from the checkpoint, gives their pages back, and adds up what was made."""

    def __init__(
        self,
        backend: Backend,
        opened: OpenedCheckpoint,
        plan: QuantizationPlan,
        cache: PackedWeightsCache | None,
        on_progress: Progress | None,
        shared: SharedWeights,
        takes_adapters: bool = False,
        shard: Shard | None = None,
    ) -> None:
        self.backend = backend
        self._ranks: WholeModel | RankModel = (
            WholeModel(opened)
            if shard is None
            else RankModel(backend, opened, shard, plan, takes_adapters)
        )
        self.checkpoint, self.weights = self._ranks.tensors, self._ranks.weights
        self.weight_bytes = 0
        self.made = SharedWeights()
        self._shared = shared
        places = find_places(opened.tensors, opened.weights) if takes_adapters else {}
        self._adapted = AdaptedParts(backend, self._ranks.places(places))
        self._dtype = None if opened.keeps_types else opened.config.dtype
        self._plan = plan
        self._exact = plan.exact_activations
        self._cache = cache
        self.forms = MatrixForms(plan)
        self._max_model_len = opened.max_model_len
        self._scales: dict[QueryScaling, Array] = {}
        self._attention_plans: dict[AttentionSpec | LatentSpec, int] = {}
        self._on_progress = on_progress
        self._done_bytes = 0
        names = self.weights.shapes() if on_progress else ()
        self._total_bytes = sum(self.checkpoint.entry(name).nbytes for name in names)

    def decoder_parts(self, max_model_len: int) -> DecoderParts:
        """Build everything; the largest tensors first, while little else is in memory."""
        weights, config = self.weights, self.weights.config
        embedding = self._embedding() if weights.is_first else None
        head = self._head(embedding) if weights.is_last else None
        rows = None if embedding is None else self._input_embedding(embedding)
        ropes = self.ropes(config, max_model_len)
        layers = [self.layer(config, layer, ropes) for layer in weights.layers]
        self.made.embedding = embedding
        # Experts that move later are read anew.
        self._cache = self._on_progress = None
        is_own = any(own is head for own in self.made.linears.values())
        return DecoderParts(
            config=config,
            embedded=rows,
            layers=layers,
            head=None if head is None else self._logits_head(head),
            state_head=self._state_head(config),
            held=self.made,
            weight_bytes=self.weight_bytes,
            shared_bytes=0 if head is None or is_own else head.nbytes,
            adapted=self._adapted.slots,
            rank_experts=self._ranks.rank_experts,
        )

    def _tables_scheme(self) -> RoundingScheme | None:
        """Return how the embedding and the head are rounded."""
        names, tables = self.weights.names, self._plan.tables
        tied = self.weights.config.tie_word_embeddings
        return self._plan.scheme_of(names.head, tables) if tied else tables

    def _embedding(self) -> Linear:
        embedding = self._shared.embedding
        return embedding or self.linear(self.weights.embedding(), self._tables_scheme())

    def _head(self, embedding: Linear | None) -> Linear:
        """Build the head; where it is tied and the embedding is made here, that is it."""
        is_here = self._shared.embedding is None
        if embedding is not None and is_here and self.weights.config.tie_word_embeddings:
            return embedding
        return self.linear(self.weights.head(), self._tables_scheme())

    def _logits_head(self, head: Linear) -> Linear:
        config = self.weights.config
        adapted = self._adapted.linear(adaptable_head(self.weights), head)
        all_logits = self._ranks.vocabulary(adapted)
        return logits_head(self.backend, all_logits, config.logits_scale, config.logits_cap)

    def _input_embedding(self, embedding: Linear) -> InputEmbedding:
        """Build what comes before the first layer."""
        weights, config = self.weights, self.weights.config
        positions, token_types = self._positions(config)
        all_tokens = self._ranks.vocabulary(embedding)
        return InputEmbedding(
            self.backend,
            embedding=self._adapted.linear(weights.embedding(), all_tokens),
            scale=config.embedding_scale,
            positions=positions,
            token_types=token_types,
            first_norm=self.norm(weights.attention_norm(0)),
        )

    def _positions(self, config: ModelConfig) -> tuple[Array | None, Array | None]:
        """Return learned positions (P, D) and what token types add, (types, D).

        Most prompts are one text: the row of the first type is added to the positions once and for
        all, and subtracted from those of the others.
        """
        if not config.learned_positions:
            return None, None
        if not config.token_types:
            return self.parameter(self.weights.positions()), None
        positions, types = (
            _floats(self.checkpoint.tensor(name)).float32()
            for name in (self.weights.positions(), self.weights.token_types())
        )
        tables = positions[config.position_offset :] + types[0], types - types[0]
        made = [self.backend.parameter(HostTensor("", "float32", table)) for table in tables]
        self.weight_bytes += sum(table.nbytes for table in tables)
        self._finish(self.weights.positions(), self.weights.token_types())
        return made[0], made[1] if config.token_types > 1 else None

    def _state_head(self, config: ModelConfig) -> StateHead:
        """Build what pooled states go through; nothing where they are not read."""
        here, weights = self.weights.is_first, self.weights
        pooler = self.linear(weights.pooler(), None) if here and config.pooler else None
        classifier = self.linear(weights.classifier(), None) if here and config.classifier else None
        return StateHead(self.backend, pooler, classifier)

    def linear(self, weights: LinearWeights, scheme: RoundingScheme | None) -> Linear:
        """Pack matrices and biases into one linear, quantized if there is a scheme."""
        key = self._key(weights, scheme)
        held = self._shared.linears.get(key)
        if held is not None:
            self._finish(*(name for name, _ in weights.shapes()))
            return held
        biases = self._biases(weights)
        matrices = self._matrices(weights, scheme)
        linear = self.backend.linear(
            matrices, biases, dtype=self._dtype, exact_activations=self._exact
        )
        self._made(linear.nbytes, [(weights, linear.packed)])
        self.made.linears[key] = linear
        self._finish(*(name for name, _ in weights.shapes()))
        return linear

    def _biases(self, weights: LinearWeights) -> Sequence[HostTensor]:
        if not weights.bias:
            return ()
        return [_floats(self.checkpoint.tensor(f"{module}.bias")) for module in weights.modules]

    def _layer_linear(self, weights: LinearWeights) -> Linear:
        """Pack matrices of a layer, which adapters may be added to."""
        made = self._adapted.linear(weights, self.linear(weights, self._plan.layers))
        return self._ranks.linear(weights, made)

    def _floats_linear(self, weights: LinearWeights) -> Linear:
        """Pack a linear of a layer that is never rounded, which adapters may be added to."""
        return self._adapted.linear(weights, self.linear(weights, None))

    def _key(self, weights: LinearWeights, scheme: RoundingScheme | None) -> LinearKey:
        forms = self._plan.forms(weights.modules, weights.columns, scheme)
        return weights.modules, forms, (self._plan.exact_activations, self._plan.fine_activations)

    def _made(
        self, nbytes: int, packed: Iterable[tuple[LinearWeights, Sequence[PackedWeights]]]
    ) -> None:
        """Count what was packed and keep it for the next start."""
        self.weight_bytes += nbytes
        cache = None if self._cache is None or self._cache.is_complete else self._cache
        for weights, matrices in packed:
            self.made.packed += matrices
            if cache is not None:
                cache.add(weights.modules[0], matrices)

    def _matrices(self, weights: LinearWeights, scheme: RoundingScheme | None) -> Sequence[Weight]:
        """Return the matrices of a linear, quantized if there is a scheme, packed if they were."""
        if self._cache is not None and self._cache.is_complete:
            packed = self._cache.find(weights.modules[0])
            for stack in packed:
                for name in stack.names:
                    self.forms.count(name, stack.form)
            return packed
        matrices = [self.checkpoint.tensor(f"{module}.weight") for module in weights.modules]
        if weights.transposed:
            matrices = [_transpose(matrix) for matrix in matrices]
        return [
            self._quantize(matrix, self._plan.scheme_of(module, scheme))
            for module, matrix in zip(weights.modules, matrices, strict=True)
        ]

    def _quantize(
        self, matrix: HostTensor | BlockMatrix | UnpackedMatrix, scheme: RoundingScheme | None
    ) -> Weight:
        if not isinstance(matrix, HostTensor):
            refuse_quantized(matrix.name, matrix.form, scheme)
        made: Weight = matrix
        if isinstance(matrix, HostTensor) and scheme is not None:
            made = quantize(matrix, scheme, self.backend.threads)
        if isinstance(matrix, QuantizedTensor) and self._plan.own_activations:
            made = replace(matrix, activations=None)
        if self._plan.fine_activations:
            made = with_fine_inputs(made)
        self.forms.count(made.name, None if isinstance(made, HostTensor) else made.form)
        return made

    def parameter(self, name: str) -> Array:
        """Copy a small weight to the backend."""
        if name in self.made.parameters:
            return self.made.parameters[name]  # a norm that two parts share
        if name in self._shared.parameters:
            self._finish(name)
            return self._shared.parameters[name]
        # A copy of our own, so that float32 weights do not go on living in the mapped file.
        tensor = _floats(self.checkpoint.tensor(name))
        array = self.backend.parameter(replace(tensor, array=tensor.array.copy()))
        self.weight_bytes += array.nbytes
        self.made.parameters[name] = array
        self.forms.count(name, None)
        self._finish(name)
        return array

    def norm(self, weights: NormWeights | None) -> Norm:
        """Make a norm with its weights; without, rows are only added up."""
        if weights is None:
            return Unnormed(self.backend)
        norm = self._adapted.norm(weights, self._plain_norm(weights))
        is_of_sum = self.weights.config.norm_placement == "sum"
        return CarriedNorm(self.backend, norm) if is_of_sum else norm

    def _plain_norm(self, weights: NormWeights) -> Norm:
        config = self.weights.config
        weight, *bias = (self.parameter(name) for name, _ in weights.shapes())
        if config.norm == "rms_norm":
            return RMSNorm(self.backend, weight, config.norm_eps)
        if not bias:
            zeros = HostTensor(weights.module, "float32", np.zeros(weights.shape, np.float32))
            bias = [self.backend.parameter(zeros)]
        return LayerNorm(self.backend, weight, bias[0], config.norm_eps)

    def layer(self, config: ModelConfig, layer: int, ropes: Sequence[RopeTables]) -> Layer:
        """Build one layer, and the norm that comes after it; ``ropes`` are of ``config.ropes``."""
        weights, last = self.weights, layer + 1 == config.num_layers
        mixing = self._latent_mixing if config.latent else self._heads_mixing
        mixed = mixing(config, layer, ropes)
        output = self._layer_linear(weights.attention_output(layer))
        mlp_norm = self.norm(weights.mlp_norm(layer))
        feed_forward = self._feed_forward(config, layer)
        next_norm = self.norm(weights.final_norm() if last else weights.attention_norm(layer + 1))
        if config.parallel:
            return ParallelLayer(self.backend, mixed, output, mlp_norm, feed_forward, next_norm)
        return DecoderLayer(
            mixing=mixed,
            output=output,
            attention_end=self._end(weights.attention_norm_after(layer)),
            mlp_norm=mlp_norm,
            feed_forward=feed_forward,
            mlp_end=self._end(weights.mlp_norm_after(layer)),
            next_norm=next_norm,
        )

    def _end(self, norm: NormWeights | None) -> End:
        made = None if norm is None else self.norm(norm)
        return End(self.backend, made, self.weights.config.residual_scale)

    def _heads_mixing(
        self, config: ModelConfig, layer: int, ropes: Sequence[RopeTables]
    ) -> HeadsMixing:
        """Build a layer's attention of queries, keys and values."""
        sinks = self.parameter(self.weights.sinks(layer)) if config.attention_sinks else None
        rope = config.layer_rope(layer)
        window = config.sliding_window if config.has_window(layer) else None
        scaling = config.layer_query_scaling(layer)
        spec = AttentionSpec(
            # An encoder's have the same KV slots, layer after layer.
            layer=0 if config.is_encoder else layer - self.weights.layers.start,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale or config.head_dim**-0.5,
            sliding_window=None if config.chunked else window,
            chunk=window if config.chunked else None,
            ahead=None if config.is_encoder else 0,
            score_cap=config.attention_cap,
            rope_sections=rope.sections if rope else (),
        )
        attention = self.backend.attention(
            spec,
            rope=ropes[config.ropes.index(rope)] if rope else None,
            qk_norm=self._qk_norm(config, layer),
            sinks=sinks,
            query_scales=None if scaling is None else self._query_scales(scaling),
        )
        return HeadsMixing(
            self._layer_linear(self.weights.qkv(layer)), attention, self._plan_of(spec)
        )

    def _latent_mixing(
        self, config: ModelConfig, layer: int, ropes: Sequence[RopeTables]
    ) -> LatentMixing:
        """Build a layer's attention of latents."""
        weights, latent = self.weights, config.latent
        assert latent is not None
        spec = LatentSpec(
            layer=layer - self.weights.layers.start,
            num_heads=config.num_heads,
            rank=latent.rank,
            rope_dim=latent.rope_dim,
            key_dim=latent.key_dim,
            value_dim=latent.value_dim,
            scale=config.attention_scale or config.head_dim**-0.5,
        )
        norm = self.parameter(f"{weights.latent_norm(layer).module}.weight")
        (name,) = weights.latent_heads(layer).modules
        heads = _floats(self.checkpoint.tensor(f"{name}.weight"))
        made = LatentWeights(norm, config.norm_eps, heads, self._dtype)
        attention = self.backend.latent_attention(spec, made, ropes[0])
        self.weight_bytes += attention.nbytes
        self.forms.count(name, None)
        self._finish(f"{name}.weight")
        queries = self._layer_linear(weights.queries(layer))
        down = weights.query_down(layer)
        rank = None if down is None else QueryRank(self.norm(weights.query_norm(layer)), queries)
        inputs = queries if down is None else self._layer_linear(down)
        latents = self._layer_linear(weights.latents(layer))
        return LatentMixing(inputs, rank, latents, attention, self._plan_of(spec))

    def _plan_of(self, spec: AttentionSpec | LatentSpec) -> int:
        """Return the number of a layer's plan; layers that differ in nothing else share it."""
        plans = self._attention_plans
        return plans.setdefault(replace(spec, layer=0), len(plans))

    def _qk_norm(self, config: ModelConfig, layer: int) -> QKNorm | None:
        if not config.has_qk_norm(layer):
            return None
        if config.qk_norm == "unit_heads":
            ones = HostTensor("ones", "float32", np.ones(config.head_dim, np.float32))
            weight = self.backend.parameter(ones)
            return QKNorm("rms_of_heads", weight, weight, config.norm_eps)
        queries, keys = (
            self.parameter(f"{norm.module}.weight") for norm in self.weights.qk_norm(layer)
        )
        return QKNorm(config.qk_norm, queries, keys, config.norm_eps)

    def _query_scales(self, scaling: QueryScaling) -> Array:
        """Make the table of a context, shared by all layers that have it."""
        if scaling not in self._scales:
            made = query_scales(scaling, self._max_model_len)
            self.weight_bytes += made.nbytes
            self._scales[scaling] = self.backend.from_numpy(made)
        return self._scales[scaling]

    def _feed_forward(self, config: ModelConfig, layer: int) -> FeedForward:
        moe, mlp = config.layer_moe(layer), self.weights.mlp(layer)
        if moe is not None:
            return self._experts(moe, config.activation, layer)
        assert mlp is not None, layer
        up, down = map(self._layer_linear, mlp)
        make = GatedMLP if config.gated_mlp else MLP
        return make(self.backend, up, down, config.activation)

    def _experts(self, config: MoEConfig, activation: str, layer: int) -> MixtureOfExperts:
        weights = self.weights
        maker = ExpertMaker(
            self.backend,
            self._adapted,
            weights.experts(layer),
            activation,
            self._dtype,
            self._exact,
            self._matrices_in_turn,
            self._biases,
        )
        experts, numbers = self._ranks.experts(maker)
        self._made(experts.nbytes, zip(maker.linears(numbers), experts.packed, strict=False))
        router = self._floats_linear(weights.router(layer))
        bias = self.parameter(weights.choice_bias(layer)) if config.choice_bias else None
        always = self._shared_experts(config, activation, layer)
        return MixtureOfExperts(
            self.backend, config.routing, router, bias, experts, always, config.weighs_inputs
        )

    def _shared_experts(
        self, config: MoEConfig, activation: str, layer: int
    ) -> SharedExperts | None:
        shared = self.weights.mlp(layer)
        if shared is None:
            return None
        gate = self._floats_linear(self.weights.shared_gate(layer)) if config.shared_gate else None
        up, down = map(self._layer_linear, shared)
        return SharedExperts(self.backend, up, down, activation, gate)

    def _matrices_in_turn(
        self, linears: Iterable[LinearWeights], held: Iterable[Sequence[Weight] | None]
    ) -> Iterator[Sequence[Weight]]:
        """Yield the matrices of each linear; when the next is asked for, the last is packed."""
        for weights, packed in zip(linears, held, strict=True):
            yield self._matrices(weights, self._plan.layers) if packed is None else packed
            self._finish(*(name for name, _ in weights.shapes()))

    def ropes(self, config: ModelConfig, max_model_len: int) -> tuple[RopeTables, ...]:
        """Make the tables of a context, those of ``config.ropes``."""
        if self._shared.ropes:
            return self._shared.ropes
        nbytes = sum(rope_table_bytes(rope, max_model_len) for rope in config.ropes)
        if nbytes > _SMALL_TABLES and nbytes > (free := read_machine().free_bytes):
            raise ConfigError(
                f"[load] the RoPE tables of a context of {max_model_len} tokens must fit in "
                f"{format_bytes(free)} of free memory; they take {format_bytes(nbytes)}. Give a "
                "smaller --max-model-len."
            )
        self.weight_bytes += nbytes
        made = []
        for rope in config.ropes:
            cos, sin = rope_tables(rope, max_model_len)
            made.append((self.backend.from_numpy(cos), self.backend.from_numpy(sin)))
        self.made.ropes = tuple(made)
        return self.made.ropes

    def _finish(self, *names: str) -> None:
        for name in names:
            self.checkpoint.release(name)
            self._done_bytes += self.checkpoint.entry(name).nbytes
        if self._on_progress is not None:
            self._on_progress(self._done_bytes, self._total_bytes)


def _floats(tensor: HostTensor | BlockMatrix | UnpackedMatrix) -> HostTensor:
    """Return the values of a small weight, made of floats if they are quantized."""
    if isinstance(tensor, HostTensor):
        return tensor
    return HostTensor(tensor.name, "float32", tensor.float32())


def _transpose(matrix: HostTensor | BlockMatrix | UnpackedMatrix) -> HostTensor:
    tensor = _floats(matrix)
    return replace(tensor, array=np.ascontiguousarray(tensor.array.T))

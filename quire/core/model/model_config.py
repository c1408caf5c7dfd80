"""The description of a decoder in our own terms; read from ``config.json`` by ``models/``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.moe_config import MoEConfig
from quire.core.model.pooling_config import ClassifierConfig, PoolingConfig
from quire.core.model.vision_config import VisionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: Base of the frequencies.
        rotary_dim: Leading elements of each head that are rotated.
        scaling: ``None`` or the checkpoint's scaling parameters with key ``rope_type``
            (``linear``, ``dynamic``, ``yarn``, ``llama3``; ``factors``, by which each frequency
            is divided).
        sections: Number of pairs of elements that turn by each of a token's several positions, such
            as time, height and width of an image; empty where a token has one.
        interleaved: Whether the checkpoint pairs neighbours, (2i, 2i + 1), where kernels pair
            (i, i + R/2): rows of queries and keys are put in order when they are loaded.
    """

    theta: float
    rotary_dim: int
    scaling: dict[str, Any] | None = None
    sections: tuple[int, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries grow with their position p: ``1 + factor * log(1 + floor((p + first) / length))``.

    Attributes:
        factor, length, first: Numbers of the formula.
        turned: Whether layers have it whose queries turn, or those whose queries do not.
    """

    factor: float
    length: int
    first: int = 0
    turned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention: what is cached of a token is a latent and a rotated key part.

    Attributes:
        rank: r, elements of the latent.
        rope_dim: R, elements of a key that turn; all heads have them in common.
        key_dim: Elements of a head's key that are made of the latent; H is both together.
        value_dim: Elements of a head's value, made of the latent, too.
        query_rank: Elements that queries are made of; None where they are made of the hidden state.
    """

    rank: int
    rope_dim: int
    key_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def row_dim(self) -> int:
        """Elements that are cached of a token in a layer."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer as one set of choices; families are values, not classes.

    Attributes:
        architecture: The checkpoint's name for the architecture, such as ``LlamaForCausalLM``.
        vocab_size: V, number of tokens.
        hidden_size: D, model dim.
        num_layers: Number of decoder layers.
        num_heads: N query heads.
        num_kv_heads: K KV heads; divides N.
        head_dim: H, elements per head; not always D / N.
        intermediate_size: Width of the MLP.
        max_position_embeddings: Longest context the checkpoint was made for, in tokens.
        dtype: Element type the checkpoint was saved in; ``auto`` when nothing tells.
        activation: Name of the activation: ``silu``, ``gelu``, ``gelu_tanh`` or, gated,
            ``clamped_swiglu``.
        gated_mlp: Whether the MLP has gate and up projections (Llama) or one projection (GPT-2).
        norm: Kind of the norms, ``rms_norm`` or ``layer_norm``.
        norm_eps: Term added inside the norm's root.
        norm_bias: Whether a LayerNorm has one.
        norm_offset: Number added to norms' weights when they are loaded (Gemma: 1).
        norm_placement: Place of the norms. ``pre``: on inputs of attention and MLP (Llama);
            ``post``: on their outputs (OLMo 2); ``both`` (Gemma 2); ``sum``: on the residual with
            the output added, which becomes the residual (BERT).
        parallel: Whether attention and MLP are given the same residual, and added to it together.
        shared_norm: Whether attention and MLP share one norm, too.
        qkv_bias, output_bias, mlp_bias, head_bias: Whether these projections have a bias.
        qk_norm: Norm of queries and keys before RoPE, empty for none: ``rms_of_heads`` (Qwen 3),
            ``rms_of_rows`` (all heads of a token together: OLMo 2), ``layer_of_heads`` (LayerNorm
            with weights of each head's own: Command R+), ``unit_heads`` (RMS without weights, in
            layers that turn alone: Llama 4).
        query_scaling: Factors that queries are multiplied by; None for none.
        latent: Settings of multi-head latent attention, where each query head has a KV head of its
            own, made of latents that all have in common; None without.
        attention_scale: Factor of the scores; None for 1 / sqrt(H).
        attention_cap: Bound that scores are bent towards, ``cap * tanh(x / cap)`` (Gemma 2); None
            without.
        attention_sinks: Whether each query head has one score more in its softmax, which has no
            value (gpt-oss).
        embedding_scale, residual_scale, logits_scale: Factors of embeddings, of what a layer adds
            to the residual, and of logits.
        logits_cap: Bound that logits are bent towards, ``cap * tanh(x / cap)``; None without.
        rope: The position embedding; None where positions are learned.
        window_rope: The position embedding of layers with a window, where it is another one (Gemma
            3).
        rope_layers: Whether queries and keys turn, by layer; empty means in all.
        learned_positions: Rows of the learned position table, or 0.
        position_offset: Row of the first position.
        token_types: Rows of a table of the texts that a token may belong to (BERT: two), or 0.
        is_encoder: Whether each position sees all of its prompt, which is computed in one step.
        tie_word_embeddings: Whether the output head shares the embedding's weights.
        has_head: Whether there is an output head; a class such as ``LlamaModel`` is saved without.
        sliding_window: Tokens a position sees, itself included; None for all.
        layer_windows: Whether the window applies, by layer; empty means to all layers.
        chunked: Whether the window does not slide: a position then sees its own stretch of
            ``sliding_window`` tokens alone (Llama 4).
        moe: The mixture of experts; None for a dense MLP in all layers.
        vision: The encoder of a model that reads pictures; None for text alone.
        pooling: The pooling of vectors, where a request names no kind.
        pooler: Whether the first token's state goes through a matrix and tanh, for classes and for
            vectors of the kind ``pooler``.
        classifier: The head of classes; None without.
        stored_quantization: Method of the checkpoint's matrices, as it spells it, or ``gguf``;
            empty for floats.
        bos_token_id, eos_token_ids: Token ids of the checkpoint's configuration.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    dtype: str = "auto"
    activation: str = "silu"
    gated_mlp: bool = True
    norm: str = "rms_norm"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_offset: float = 0.0
    norm_placement: str = "pre"
    parallel: bool = False
    shared_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: str = ""
    query_scaling: QueryScaling | None = None
    latent: LatentConfig | None = None
    attention_scale: float | None = None
    attention_cap: float | None = None
    attention_sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    logits_cap: float | None = None
    rope: RopeConfig | None = None
    window_rope: RopeConfig | None = None
    rope_layers: tuple[bool, ...] = ()
    learned_positions: int = 0
    position_offset: int = 0
    token_types: int = 0
    is_encoder: bool = False
    tie_word_embeddings: bool = False
    has_head: bool = True
    sliding_window: int | None = None
    layer_windows: tuple[bool, ...] = ()
    chunked: bool = False
    moe: MoEConfig | None = None
    vision: VisionConfig | None = None
    pooling: PoolingConfig = field(default=PoolingConfig())
    pooler: bool = False
    classifier: ClassifierConfig | None = None
    stored_quantization: str = ""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    @property
    def generates(self) -> bool:
        """Whether the model has an output head, and so can be asked for tokens."""
        return self.has_head and not self.is_encoder and self.classifier is None

    def kv_cache_spec(self, block_size: int, dtype: str, **options: Any) -> KVCacheSpec:
        """Return the KV cache of all layers; ``options`` are further fields of the spec.

        Raises:
            ConfigError: The cache cannot be of that ``dtype``.
        """
        layers = 1 if self.is_encoder else self.num_layers
        heads, size = self.num_kv_heads, self.head_dim
        options["is_kept"] = not self.is_encoder
        if self.latent is not None:
            heads, size, options["is_latent"] = 1, self.latent.row_dim, True
        return KVCacheSpec(layers, heads, size, block_size, dtype, **options)

    @property
    def attended_dim(self) -> int:
        """Elements that attention gives for each row."""
        return self.num_heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def attention_parameters(self) -> int:
        """Weights of the matrices of a layer's attention."""
        width, latent = self.hidden_size, self.latent
        query, pair = self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        if latent is None:
            return width * (2 * query + pair)
        source = latent.query_rank or width
        heads = self.num_heads * (latent.key_dim + latent.value_dim)
        down = width * (latent.row_dim + (latent.query_rank or 0))
        return down + query * source + heads * latent.rank + width * self.attended_dim

    def has_window(self, layer: int) -> bool:
        """Tell whether a layer's positions see the latest ``sliding_window`` alone."""
        windowed = not self.layer_windows or self.layer_windows[layer]
        return windowed and self.sliding_window is not None

    def layer_moe(self, layer: int) -> MoEConfig | None:
        """Return a layer's mixture of experts; None where it has a dense MLP."""
        return None if self.moe is None or layer in self.moe.dense_layers else self.moe

    @property
    def num_moe_layers(self) -> int:
        """Layers with a mixture of experts."""
        return 0 if self.moe is None else self.num_layers - len(self.moe.dense_layers)

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.num_layers - self.num_moe_layers

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Position embeddings that queries and keys of some layer turn by."""
        return tuple(rope for rope in (self.rope, self.window_rope) if rope is not None)

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """Return what a layer's queries and keys turn by, or None."""
        if self.rope_layers and not self.rope_layers[layer]:
            return None
        return self.window_rope if self.window_rope and self.has_window(layer) else self.rope

    def has_qk_norm(self, layer: int) -> bool:
        """Tell whether a layer's queries and keys are normalised."""
        turned = self.layer_rope(layer) is not None
        return bool(self.qk_norm) and (turned or self.qk_norm != "unit_heads")

    def layer_query_scaling(self, layer: int) -> QueryScaling | None:
        """Return what a layer's queries are multiplied by, or None."""
        scaling, turned = self.query_scaling, self.layer_rope(layer) is not None
        return scaling if scaling is not None and scaling.turned == turned else None

    @property
    def num_parameters(self) -> int:
        """Weights of the checkpoint; a matrix that two layers share counts once."""
        width = self.hidden_size
        norm = (2 if self.norm == "layer_norm" and self.norm_bias else 1) * width
        num_norms = 4 if self.norm_placement == "both" else 1 if self.shared_norm else 2
        query, pair = self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        layer = self.attention_parameters + (query + pair) * self.qkv_bias
        layer += width * self.output_bias
        if self.latent is not None:
            layer += self.latent.rank + (self.latent.query_rank or 0)
        layer += num_norms * norm + (self.num_heads if self.attention_sinks else 0)
        if self.qk_norm and self.qk_norm != "unit_heads":
            layer += 2 * self.head_dim if self.qk_norm == "rms_of_heads" else query + pair // 2
        mlps = self.num_dense_layers * self._mlp_parameters(self.intermediate_size, self.mlp_bias)
        if self.moe is not None:
            mlps += self.num_moe_layers * self._moe_parameters(self.moe)
        matrices = 1 if self.tie_word_embeddings else 2
        rows = matrices * self.vocab_size + self.learned_positions + self.token_types
        bias = self.vocab_size if self.head_bias else 0
        return self.num_layers * layer + mlps + rows * width + norm + bias + self._head_parameters

    @property
    def _head_parameters(self) -> int:
        width, classifier = self.hidden_size, self.classifier
        pooler = width * (width + 1) if self.pooler else 0
        return pooler + (len(classifier.labels) * (width + classifier.bias) if classifier else 0)

    def _mlp_parameters(self, inner: int, bias: bool) -> int:
        width = self.hidden_size
        return (2 if self.gated_mlp else 1) * inner * (width + bias) + width * (inner + bias)

    def _moe_parameters(self, moe: MoEConfig) -> int:
        expert = self._mlp_parameters(moe.intermediate_size, moe.expert_bias)
        router = self.hidden_size + moe.router_bias + moe.choice_bias
        shared = self._mlp_parameters(moe.shared_size, False) if moe.shared_size else 0
        gate = self.hidden_size if moe.shared_gate else 0
        return moe.num_experts * (expert + router) + shared + gate

"""The decoder layers of a head, most often one, out of its checkpoint.

D model dim of the head, which is the target's; V vocabulary of the target, W that of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.errors import ModelLoadError
from quire.core.model.model_config import ModelConfig
from quire.kernels.backend import Array, AttentionSpec, Linear, QKNorm
from quire.layers.attention import HeadsMixing
from quire.layers.decoder_layer import DecoderLayer, End
from quire.layers.mlp import GatedMLP
from quire.layers.norm import Norm
from quire.layers.rope import rope_tables
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors, refuse_width
from quire.models.families.llama import read_decoder

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
INPUT_NORM, MLP_NORM = "input_layernorm", "post_attention_layernorm"
#: Kinds of layers that are Llama's but for norms and biases, which their tensors tell.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
#: Tables that a head may bring: of tokens, and its output.
EMBEDDING = "embed_tokens"


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Shape of a head, from its checkpoint.

    Attributes:
        config: Configuration of its layers; ``vocab_size`` is the target's.
        layer: Prefix of the names of the first layer's tensors.
        draft_size: W.
        layers: Layers of the target whose states it reads; empty for the final norm's.
        further: Prefixes of the names of the tensors of the layers after the first.
        mask_token_id: Token that stands for those to come, of a head that drafts several tokens at
            once.
    """

    config: ModelConfig
    layer: str
    draft_size: int
    layers: tuple[int, ...] = ()
    further: tuple[str, ...] = ()
    mask_token_id: int | None = None


def read_layer(tensors: HeadTensors, target: ModelConfig) -> ModelConfig:
    """Read the shape of the layer, in any of the published layouts.

    Raises:
        ModelLoadError: A field is missing or wrong, or of another width than the target.
    """
    values = dict(tensors.config.values)
    values |= _speculators_layer(tensors.config)
    values |= {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    values["vocab_size"] = target.vocab_size
    values.setdefault("max_position_embeddings", target.max_position_embeddings)
    config = read_decoder(ConfigFields(values, tensors.config.where), dtype=target.dtype)
    refuse_width(tensors, "config.json", config.hidden_size, "hidden size", target.hidden_size)
    own = tensors.config.values.get("vocab_size", target.vocab_size)
    if "transformer_layer_config" not in tensors.config.values:
        refuse_width(tensors, "config.json", own, "vocabulary", target.vocab_size)
    return config


def _speculators_layer(config: ConfigFields) -> dict[str, Any]:
    """Return what ``speculators`` says of the layer; refuse what would be computed otherwise."""
    name = "transformer_layer_config"
    layer = config.values.get(name) or {}
    if not isinstance(layer, dict):
        raise config.error(name, "must be an object")
    kind = layer.get("model_type", "llama")
    if kind not in MODEL_TYPES:
        raise ModelLoadError(
            f"[load] {config.where}: the model_type of {name} must be one of "
            f"{', '.join(MODEL_TYPES)}; got {kind!r:.80}."
        )
    types = layer.get("layer_types") or ["full_attention"]
    if not isinstance(types, list) or types[0] != "full_attention":
        raise ModelLoadError(
            f"[load] {config.where}: layer_types of {name} must begin with full_attention; got "
            f"{types!r:.80}."
        )
    return layer


def layer_shapes(
    tensors: HeadTensors, config: ModelConfig, layer: str, input_size: int, norms: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a layer and of norms.

    Args:
        tensors: Tensors of the head.
        config: Configuration of the layer.
        layer: Prefix of the names of the layer's tensors.
        input_size: Input size of its attention.
        norms: Modules of all norms over D.
    """
    size, wide = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}{QKV[0]}.weight": (q, input_size),
        f"{layer}{QKV[1]}.weight": (kv, input_size),
        f"{layer}{QKV[2]}.weight": (kv, input_size),
        f"{layer}self_attn.o_proj.weight": (size, q),
        f"{layer}mlp.gate_proj.weight": (wide, size),
        f"{layer}mlp.up_proj.weight": (wide, size),
        f"{layer}mlp.down_proj.weight": (size, wide),
    }
    for modules in (QKV, ("self_attn.o_proj",), GATE_UP, ("mlp.down_proj",)):
        biases = {f"{layer}{m}.bias": shapes[f"{layer}{m}.weight"][:1] for m in modules}
        shapes |= biases if biases.keys() & tensors.names else {}
    qk_norms = [name for name in _qk_norms(layer) if name in tensors.names]
    shapes |= dict.fromkeys(_qk_norms(layer) if qk_norms else (), (config.head_dim,))
    shapes |= {f"{module}.weight": (size,) for module in norms}
    return shapes


def build_layers(
    builder: HeadBuilder, shape: HeadShape, max_positions: int, last_norm: Norm
) -> tuple[DecoderLayer, ...]:
    """Make the layers.

    Args:
        builder: Builder of the head's parts.
        shape: Shape that was read from the head.
        max_positions: Longest context, in tokens.
        last_norm: Norm that ends the last layer.
    """
    config, backend = shape.config, builder.backend
    assert config.rope is not None, "a Llama-style layer without a rotary embedding"
    cos, sin = (backend.from_numpy(table) for table in rope_tables(config.rope, max_positions))
    builder.weight_bytes += cos.nbytes + sin.nbytes
    norms = [builder.norm(f"{layer}{INPUT_NORM}", config.norm_eps) for layer in shape.further]
    return tuple(
        _build_layer(builder, config, (layer, number), (cos, sin), norm)
        for number, (layer, norm) in enumerate(
            zip((shape.layer, *shape.further), (*norms, last_norm), strict=True)
        )
    )


def _build_layer(
    builder: HeadBuilder,
    config: ModelConfig,
    place: tuple[str, int],
    rope: tuple[Array, Array],
    next_norm: Norm,
) -> DecoderLayer:
    """Make one; ``place`` is what its names begin with, and its number."""
    (layer, number), backend = place, builder.backend
    spec = AttentionSpec(
        layer=number,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
    )
    qk_norm = None
    if _qk_norms(layer)[0] in builder.tensors.names:
        q_norm, k_norm = _qk_norms(layer)
        weights = builder.parameter(q_norm), builder.parameter(k_norm)
        qk_norm = QKNorm("rms_of_heads", *weights, config.norm_eps)
    return DecoderLayer(
        mixing=HeadsMixing(
            builder.linear([layer + module for module in QKV]),
            backend.attention(spec, rope=rope, qk_norm=qk_norm),
            plan=0,
        ),
        output=builder.linear([f"{layer}self_attn.o_proj"]),
        attention_end=End(backend),
        mlp_end=End(backend),
        mlp_norm=builder.norm(f"{layer}{MLP_NORM}", config.norm_eps),
        feed_forward=GatedMLP(
            backend,
            builder.linear([layer + module for module in GATE_UP]),
            builder.linear([f"{layer}mlp.down_proj"]),
            config.activation,
        ),
        next_norm=next_norm,
    )


def _qk_norms(layer: str) -> tuple[str, str]:
    """Return the norms (H,) that queries and keys have in Qwen3."""
    return f"{layer}self_attn.q_norm.weight", f"{layer}self_attn.k_norm.weight"


def own_or(builder: HeadBuilder, module: str, shared: Linear) -> Linear:
    """Return a table of the head's own, or the target's where it brings none."""
    if f"{module}.weight" in builder.tensors.names:
        return builder.linear([module], is_table=True)
    return shared


def table_shapes(
    tensors: HeadTensors, tables: dict[str, int], size: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes (rows, D) of those tables that the head brings."""
    names = {f"{module}.weight": (rows, size) for module, rows in tables.items()}
    return {name: shape for name, shape in names.items() if name in tensors.names}


def find_layer(tensors: HeadTensors, prefixes: Sequence[str]) -> str:
    """Return which prefix the layer's tensors have.

    Raises:
        ModelLoadError: None.
    """
    for prefix in prefixes:
        if f"{prefix}{QKV[0]}.weight" in tensors.names:
            return prefix
    some = ", ".join(sorted(tensors.names)[:4])
    raise ModelLoadError(
        f"[load] a draft head of this kind must have {prefixes[0]}{QKV[0]}.weight; got {some} and "
        f"others in {tensors.path}."
    )

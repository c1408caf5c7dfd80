"""A GGUF file's metadata to :class:`ModelConfig`, through the families' own readers.

The metadata is spelled as a ``config.json`` and read by the family that would read that, so ranges
and options are checked in one place; errors name the metadata's keys.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.model_config import ModelConfig
from quire.models.config_fields import ConfigFields
from quire.models.gguf_file import GgufFile
from quire.models.gguf_names import ROPE_FACTORS
from quire.models.registry import get_family

log = logging.getLogger(__name__)

#: ``general.architecture`` to the class that a ``config.json`` names; with experts, Mixtral's.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
#: A field of ``config.json`` to the metadata's key without its architecture.
LLAMA_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
}
GPT2_KEYS = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
REQUIRED = (
    "embedding_length", "block_count", "attention.head_count", "feed_forward_length",
    "context_length", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
)  # fmt: skip

MAX_EXPERTS = 1024

#: Keys that change the output, with the values that change nothing; others are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window_pattern": (),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}
#: Keys that are read below or say nothing about the forward pass.
OTHER_KEYS = frozenset(
    {
        "attention.sliding_window", "attention.value_length", "expert_feed_forward_length",
        "rope.dimension_count", "rope.scale_linear", "rope.scaling.attn_factor",
        "rope.scaling.factor", "rope.scaling.finetuned", "rope.scaling.original_context_length",
        "rope.scaling.type", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "tensor_data_layout", "vocab_size",
    }
)  # fmt: skip


class _MetadataFields(ConfigFields):
    """Fields of a ``config.json`` that stand in a GGUF file under other names."""

    def __init__(self, values: dict[str, Any], where: str, keys: Mapping[str, str]) -> None:
        super().__init__(values, where)
        self._keys = keys

    def error(self, name: str, rule: str) -> ModelLoadError:
        """Return the error that the metadata of field ``name`` breaks ``rule``."""
        key, got = self._keys.get(name, name), repr(self.values.get(name))[:80]
        return ModelLoadError(f"[load] {self.where}: {key} {rule}; got {got}.")


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Read the configuration of a decoder from its metadata and the shapes of its tensors.

    Raises:
        UnsupportedArchitectureError: An architecture, or an option that changes the output, is not
            implemented.
        ModelLoadError: A key is missing or out of range.
    """
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedArchitectureError(
            f"[load] {file.path}: general.architecture must be one of {', '.join(ARCHITECTURES)}; "
            f"got {name!r:.80}. Use a model of a supported architecture."
        )
    parts = file.integer("split.count", 0) or 0
    if parts > 1:
        raise ModelLoadError(
            f"[load] {file.path}: split.count must be 1, a model in one file; got {parts}. Join "
            "the parts with llama-gguf-split --merge."
        )
    reader = _Reader(file, name)
    config = reader.config()
    eos = (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
    eos_ids = [file.token_id(key) for key in eos]
    return replace(
        config,
        dtype=_dtype(file),
        bos_token_id=file.token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(i for i in eos_ids if i is not None)),
    )


class _Reader:
    """Spells one architecture's metadata as a ``config.json``."""

    def __init__(self, file: GgufFile, name: str) -> None:
        self.file = file
        self.name = name
        prefix = f"{name}."
        self.values = {
            key.removeprefix(prefix): _uniform(file, key, value)
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        self.keys = GPT2_KEYS if name == "gpt2" else LLAMA_KEYS

    def config(self) -> ModelConfig:
        """Read everything but dtype and special tokens."""
        for key in REQUIRED:
            if key in self.keys.values() and key not in self.values:
                raise self._error(key, "is required")
        self._refuse_options()
        self._at_most("block_count", len(self.file.tensors), "the number of tensors")
        self._at_most("expert_count", MAX_EXPERTS, "the most that Quire takes")
        fields = {field: self.values[key] for field, key in self.keys.items() if key in self.values}
        architecture = ARCHITECTURES[self.name]
        if self.name != "gpt2":
            fields |= self._rope_fields()
            if fields.get("num_local_experts"):
                architecture = "MixtralForCausalLM"
                self._same("expert_feed_forward_length", fields["intermediate_size"])
        fields["architectures"] = [architecture]
        fields["vocab_size"] = self._vocab_size()
        fields["tie_word_embeddings"] = "output.weight" not in self.file.tensors
        keys = {field: f"{self.name}.{key}" for field, key in self.keys.items()}
        where = str(self.file.path)
        config = get_family(architecture).read_config(_MetadataFields(fields, where, keys))
        return self._complete(config)

    def _complete(self, config: ModelConfig) -> ModelConfig:
        """Add what only the tensors tell, and options the families spell differently."""
        self._same("attention.value_length", config.head_dim)
        if self.name != "gpt2":
            tensors = self.file.tensors
            config = replace(
                config,
                qkv_bias="blk.0.attn_q.bias" in tensors,
                output_bias="blk.0.attn_output.bias" in tensors,
                mlp_bias="blk.0.ffn_down.bias" in tensors,
            )
        window = self._integer("attention.sliding_window", 0)
        if window:
            config = replace(config, sliding_window=window)
        if ROPE_FACTORS not in self.file.tensors or config.rope is None:
            return config
        if config.rope.scaling is not None:
            raise self._error("rope.scaling.type", f"must be absent where {ROPE_FACTORS} is given")
        scaling = {"rope_type": "factors", "factors": self._rope_factors(config.rope.rotary_dim)}
        return replace(config, rope=replace(config.rope, scaling=scaling))

    def _rope_fields(self) -> dict[str, Any]:
        """Return the fields of positions and heads; defaults are llama.cpp's."""
        values = self.values
        fields: dict[str, Any] = {"rope_theta": values.get("rope.freq_base", 10_000.0)}
        heads, width = values["attention.head_count"], values["embedding_length"]
        head_dim = values.get("attention.key_length")
        if head_dim is None and type(heads) is type(width) is int and heads and width % heads == 0:
            head_dim = width // heads
        fields["head_dim"] = head_dim
        if "rope.dimension_count" in values and type(head_dim) is int and head_dim:
            rotary_dim = self._integer("rope.dimension_count", head_dim)
            fields["partial_rotary_factor"] = rotary_dim / head_dim
        kind = values.get("rope.scaling.type", "none")
        factor = values.get("rope.scaling.factor", 0.0)
        if "rope.scale_linear" in values and kind == "none":
            kind, factor = "linear", values["rope.scale_linear"]
        if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
            return fields
        if kind not in ("linear", "yarn"):
            raise UnsupportedArchitectureError(
                str(self._error("rope.scaling.type", "must be none, linear or yarn"))
            )
        if type(factor) is not float or not 1.0 <= factor < math.inf:
            raise self._error("rope.scaling.factor", "must be a number >= 1")
        scaling = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            names = {
                "original_max_position_embeddings": "rope.scaling.original_context_length",
                "beta_fast": "rope.scaling.yarn_beta_fast",
                "beta_slow": "rope.scaling.yarn_beta_slow",
            }
            scaling |= {field: values[key] for field, key in names.items() if key in values}
            attention = values.get("rope.scaling.attn_factor", 1.0)
            if type(attention) is not float or not 0.0 < attention < math.inf:
                raise self._error("rope.scaling.attn_factor", "must be a number > 0")
            if attention != 1.0:
                scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
        return fields | {"rope_scaling": scaling}

    def _rope_factors(self, rotary_dim: int) -> tuple[float, ...]:
        tensor = self.file.tensors[ROPE_FACTORS]
        if tensor.layout.name != "F32" or tensor.shape != (rotary_dim // 2,):
            raise ModelLoadError(
                f"[load] {self.file.path}: {ROPE_FACTORS} must be F32 ({rotary_dim // 2},); got "
                f"{tensor.layout.name} {tensor.shape}."
            )
        factors = np.frombuffer(self.file.data(ROPE_FACTORS), np.float32)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise ModelLoadError(
                f"[load] {self.file.path}: {ROPE_FACTORS} must be finite and > 0; got others."
            )
        return tuple(factors.tolist())

    def _vocab_size(self) -> int:
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelLoadError(
                f"[load] {self.file.path} must hold token_embd.weight; got "
                f"{len(self.file.tensors)} tensors without it. A vocabulary alone is no model."
            )
        self._same("vocab_size", embedding.shape[0])
        num_tokens = len(self.file.texts("tokenizer.ggml.tokens"))
        if num_tokens > embedding.shape[0]:
            raise ModelLoadError(
                f"[load] {self.file.path}: tokenizer.ggml.tokens must have at most "
                f"{embedding.shape[0]} elements, the rows of token_embd.weight; got {num_tokens}."
            )
        return embedding.shape[0]

    def _at_most(self, key: str, limit: int, what: str) -> None:
        # Names are made for each layer and expert before tensors are looked for.
        value = self.values.get(key, 0)
        if type(value) is not int or value > limit:
            raise self._error(key, f"must be an integer of at most {limit}, {what}")

    def _integer(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if type(value) is not int or not 0 <= value < 2**31:
            raise self._error(key, "must be an integer >= 0 and < 2**31")
        return value

    def _same(self, key: str, value: int) -> None:
        if self.values.get(key, value) != value:
            raise self._error(key, f"must be {value}, as its tensors and other keys say")

    def _refuse_options(self) -> None:
        values = self.values
        for key, allowed in NEUTRAL.items():
            if key in values and values[key] not in allowed:
                raise UnsupportedArchitectureError(
                    f"{self._error(key, 'is an option that Quire does not implement')} "
                    "Use a model without it."
                )
        known = {*self.keys.values(), *NEUTRAL, *OTHER_KEYS}
        unknown = sorted(set(values) - known)
        if unknown:
            log.warning("%s: keys not known to Quire have no effect: %s", self.file.path, unknown)

    def _error(self, key: str, rule: str) -> ModelLoadError:
        got = repr(self.values.get(key))[:80]
        return ModelLoadError(f"[load] {self.file.path}: {self.name}.{key} {rule}; got {got}.")


def _uniform(file: GgufFile, key: str, value: Any) -> Any:
    """Return the one number that a list per layer repeats; other values as they are."""
    if not isinstance(value, array):
        return value
    if len(set(value)) != 1:
        raise UnsupportedArchitectureError(
            f"[load] {file.path}: {key} must be the same in all layers; got {list(value[:8])}. "
            "Quire does not implement layers of different sizes."
        )
    return value[0]


def _dtype(file: GgufFile) -> str:
    """Return the half-precision type that most bytes of float matrices have.

    Without any it is float32; float16, which the KV cache then has, in files of quantized ones:
    bfloat16, over which prompts' attention is faster, adds to what rounding costs.
    """
    count: Counter[str] = Counter()
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            count["quantized" if tensor.layout.is_quantized else tensor.layout.name] += (
                tensor.nbytes
            )
    if count["F16"] or count["BF16"]:
        most = max(("F16", "BF16", "F32"), key=count.__getitem__)
    else:
        most = "F16" if count["quantized"] > count["F32"] else "F32"
    return {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}[most]

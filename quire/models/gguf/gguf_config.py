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

from quire.checkpoints.config_fields import MAX_EXPERTS, ConfigFields
from quire.checkpoints.gguf.gguf_file import GgufHeader
from quire.checkpoints.gguf.gguf_keys import (
    NEUTRAL,
    OTHER_KEYS,
    POOLING,
    REQUIRED,
    SCALES,
    WINDOW,
    WINDOW_PATTERN,
)
from quire.checkpoints.gguf.gguf_names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.model.model_config import ModelConfig
from quire.core.model.pooling_config import PoolingConfig
from quire.layers.rope import longrope_attention
from quire.models.config.registry import get_family
from quire.models.gguf.gguf_architectures import ARCHITECTURES
from quire.models.gguf.gguf_endings import ending_ids

log = logging.getLogger(__name__)

#: ``pooling_type`` of classes.
RANKING = 4
#: Of llama.cpp, where a file says nothing.
DEFAULT_THETA = 10_000.0


class _MetadataFields(ConfigFields):
    """Fields of a ``config.json`` that stand in a GGUF file under other names."""

    def __init__(self, values: dict[str, Any], where: str, keys: Mapping[str, str]) -> None:
        super().__init__(values, where)
        self._keys = keys

    def error(self, name: str, rule: str) -> ModelLoadError:
        """Return the error that the metadata of field ``name`` breaks ``rule``."""
        key, got = self._keys.get(name, name), repr(self.values.get(name))[:80]
        return ModelLoadError(f"[load] {self.where}: {key} {rule}; got {got}.")


def read_gguf_config(file: GgufHeader) -> ModelConfig:
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
    return replace(
        config,
        dtype=_dtype(file),
        bos_token_id=file.token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=ending_ids(file),
    )


class _Reader:
    """Spells one architecture's metadata as a ``config.json``."""

    def __init__(self, file: GgufHeader, name: str) -> None:
        self.file = file
        self.name = name
        self.architecture = ARCHITECTURES[name]
        prefix = f"{name}."
        self.values = {
            key.removeprefix(prefix): _uniform(file, key, value)
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        self.keys = self.architecture.keys

    def config(self) -> ModelConfig:
        """Read everything but dtype and special tokens."""
        for key in REQUIRED:
            if key in self.keys.values() and key not in self.values:
                raise self._error(key, "is required")
        self._refuse_options()
        self._at_most("block_count", len(self.file.tensors), "the number of tensors")
        self._at_most("expert_count", MAX_EXPERTS, "the most that Quire takes")
        fields = dict(self.architecture.fields) | {
            field: self._spelled(field, self.values[key])
            for field, key in self.keys.items()
            if key in self.values and not (key in SCALES and self.values[key] == 0.0)
        }
        key, other = self.architecture.instead or ("", "")
        model = other if self.values.get(key) else self.architecture.model
        tensor, other_by = self.architecture.instead_by or ("", "")
        model = other_by if tensor in self.file.tensors else model
        if self.file.num_drafting_blocks:
            fields["num_hidden_layers"] -= self.file.num_drafting_blocks
        if self.architecture.rotates:
            heads = self._latent_fields if self.architecture.is_latent else self._head_fields
            fields |= heads() | self._rope_fields()
            fields |= self._query_fields(fields, fields.pop("llama_4_scaling_beta", 0.0))
            if fields.get("num_local_experts"):
                self._same("expert_feed_forward_length", fields["intermediate_size"])
        # A class that the window's key alone makes another has none itself.
        if self.architecture.window_every and (key != WINDOW or model == other):
            fields |= self._window_fields()
        if fields.get("head_dim", 1):
            for name, derive in self.architecture.derived.items():
                fields.setdefault(name, derive(fields, self.file.tensors))
        fields["architectures"] = [model]
        fields["vocab_size"] = self._vocab_size()
        fields["tie_word_embeddings"] = "output.weight" not in self.file.tensors
        keys = {field: f"{self.name}.{key}" for field, key in self.keys.items()}
        keys["partial_rotary_factor"] = f"{self.name}.rope.dimension_count"
        where = str(self.file.path)
        config = get_family(model).read_config(_MetadataFields(fields, where, keys))
        return self._complete(config)

    def _complete(self, config: ModelConfig) -> ModelConfig:
        """Add what only the tensors tell, and options the families spell differently."""
        if config.latent is None:
            for key in ("attention.key_length", "attention.value_length"):
                self._same(key, config.head_dim)
        if self.architecture.rotates:
            tensors = self.file.tensors
            biases = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}
            config = replace(
                config,
                qkv_bias=not biases.isdisjoint(tensors),
                output_bias="blk.0.attn_output.bias" in tensors,
                mlp_bias="blk.0.ffn_down.bias" in tensors,
                head_bias="output.bias" in tensors,
            )
        config = replace(config, pooling=self._pooling(config.pooling))
        if config.pooler and config.classifier is None:
            config = replace(config, pooler="cls.weight" in self.file.tensors)
        window = self._integer(WINDOW, 0)
        if window and not self.architecture.window_every:
            config = replace(config, sliding_window=window, layer_windows=self._layer_windows())
        elif WINDOW_PATTERN in self.values and not window:
            raise self._error(WINDOW, f"is required where {WINDOW_PATTERN} is given")
        if ROPE_FACTORS not in self.file.tensors or config.rope is None:
            return config
        if config.rope.scaling is not None:
            raise self._error("rope.scaling.type", f"must be absent where {ROPE_FACTORS} is given")
        factors = self._rope_factors(ROPE_FACTORS, config.rope.rotary_dim)
        scaling = {"rope_type": "factors", "factors": factors}
        return replace(config, rope=replace(config.rope, scaling=scaling))

    def _window_fields(self) -> dict[str, Any]:
        """Return the fields of a window that some layers have; none has it where it is 0."""
        window = self._integer(WINDOW, 0)
        flags = self._layer_windows() if window else (False,) * self.values["block_count"]
        kinds = ["sliding_attention" if flag else "full_attention" for flag in flags]
        return {"layer_types": kinds} | ({"sliding_window": window} if window else {})

    def _layer_windows(self) -> tuple[bool, ...]:
        """Return which layers have the window; nothing where no key tells, and all have it."""
        num_layers, every = self.values["block_count"], self.architecture.window_every
        if WINDOW_PATTERN not in self.values and not every:
            return ()
        pattern = self.values.get(WINDOW_PATTERN, every)
        if type(pattern) is int and pattern >= 0:
            # Of that many layers, the last sees all; of 0, none does.
            return tuple(not pattern or n % pattern < pattern - 1 for n in range(num_layers))
        flags = tuple(pattern) if isinstance(pattern, list | array) else ()
        if len(flags) != num_layers or not all(flag in (0, 1) for flag in flags):
            raise self._error(
                WINDOW_PATTERN, f"must be a number of layers or one flag a layer ({num_layers})"
            )
        return tuple(map(bool, flags))

    def _head_fields(self) -> dict[str, Any]:
        """Return the fields of a head's size and of how much of it positions turn."""
        heads, width = self._integer("attention.head_count"), self._integer("embedding_length")
        if "attention.key_length" in self.values:
            head_dim = self._integer("attention.key_length")
        elif heads and width % heads:
            raise self._error(
                "embedding_length", f"must be a multiple of the number of heads ({heads})"
            )
        else:
            head_dim = width // heads if heads else 0
        rotary_dim = self._integer("rope.dimension_count", head_dim)
        # Half an element more, so that rounding does not take one away.
        whole = not head_dim or rotary_dim == head_dim
        share = 1.0 if whole else (rotary_dim + 0.5) / head_dim
        return {"head_dim": head_dim, "partial_rotary_factor": share}

    def _latent_fields(self) -> dict[str, Any]:
        """Return the fields of latent attention's sizes.

        Files that have keys and values of latents in two matrices count a KV head, as large as the
        latents; older ones have the heads that are made of them.
        """
        end = "_mla" if "attention.key_length_mla" in self.values else ""
        size, value_dim = (self._integer(f"attention.{n}_length{end}") for n in ("key", "value"))
        turned, heads = (self._integer(n) for n in ("rope.dimension_count", "attention.head_count"))
        if size <= turned:
            rule = f"must be greater than rope.dimension_count ({turned})"
            raise self._error(f"attention.key_length{end}", rule)
        if end:
            rank = self._integer("attention.kv_lora_rank")
            self._same("attention.head_count_kv", 1)
            self._same("attention.key_length", rank + turned)
            self._same("attention.value_length", rank)
        else:
            self._same("attention.head_count_kv", heads)
        return {
            "head_dim": turned,
            "num_key_value_heads": heads,
            "qk_nope_head_dim": size - turned,
            "qk_rope_head_dim": turned,
            "v_head_dim": value_dim,
        }

    def _rope_fields(self) -> dict[str, Any]:
        """Return the fields of positions; defaults are llama.cpp's."""
        values = self.values
        fields: dict[str, Any] = {"rope_theta": values.get("rope.freq_base", DEFAULT_THETA)}
        kind = values.get("rope.scaling.type", "none")
        factor = values.get("rope.scaling.factor", 0.0)
        attention = values.get("rope.scaling.attn_factor", 1.0)
        if type(attention) is not float or not 0.0 < attention < math.inf:
            raise self._error("rope.scaling.attn_factor", "must be a number > 0")
        if {LONG_FACTORS, SHORT_FACTORS} & set(self.file.tensors):
            return fields | {"rope_scaling": self._longrope(kind, attention)}
        if "rope.scale_linear" in values and kind == "none":
            kind, factor = "linear", values["rope.scale_linear"]
        if kind != "yarn" and attention != 1.0:
            raise UnsupportedArchitectureError(
                str(self._error("rope.scaling.attn_factor", f"must be 1 for the type {kind}"))
            )
        if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
            return fields
        if kind not in ("linear", "yarn"):
            rule = f"must be none, linear or yarn where there is no {LONG_FACTORS}"
            raise UnsupportedArchitectureError(str(self._error("rope.scaling.type", rule)))
        if type(factor) is not float or not 1.0 <= factor < math.inf:
            raise self._error("rope.scaling.factor", "must be a number >= 1")
        scaling = {"rope_type": kind, "factor": factor}
        if not self.architecture.truncates:
            scaling["truncate"] = False
        if kind == "yarn":
            names = {
                "original_max_position_embeddings": "rope.scaling.original_context_length",
                "beta_fast": "rope.scaling.yarn_beta_fast",
                "beta_slow": "rope.scaling.yarn_beta_slow",
            }
            scaling |= {field: values[key] for field, key in names.items() if key in values}
            if attention != 1.0:
                scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0)
            scaling |= self._mscales()
        return fields | {"rope_scaling": scaling}

    def _query_fields(self, fields: dict[str, Any], factor: Any) -> dict[str, Any]:
        """Return the RoPE's fields of queries that grow by ``factor`` past the original context."""
        if factor == 0.0:
            return {}
        if type(factor) is not float or not 0.0 < factor < math.inf:
            raise self._error("attention.temperature_scale", "must be a number >= 0")
        context = {"original_max_position_embeddings": self._integer("context_length")}
        scaling = context | fields.pop("rope_scaling", {"rope_type": "default"})
        scaling |= {"rope_theta": fields.pop("rope_theta"), "llama_4_scaling_beta": factor}
        return {"rope_parameters": scaling}

    def _mscales(self) -> dict[str, float]:
        """Return the fields of YaRN's factors on scores, where a file says them."""
        unit, key = self.architecture.mscale_unit, "rope.scaling.yarn_log_multiplier"
        if not unit or self.values.get(key, 0.0) == 0.0:
            return {}
        value = self.values[key]
        if type(value) is not float or not 0.0 < value < math.inf:
            raise self._error(key, "must be a number >= 0")
        self._same("rope.scaling.attn_factor", 1.0)
        every = round(value / unit, 6)
        return {
            "mscale": every if self.architecture.equal_mscales else 1.0,
            "mscale_all_dim": every,
        }

    def _longrope(self, kind: str, attention: float) -> dict[str, Any]:
        """Return LongRoPE's parameters: factors of two tensors, by the length of the context."""
        if kind not in ("none", "longrope"):
            raise self._error(
                "rope.scaling.type", f"must be longrope where {LONG_FACTORS} is given"
            )
        head_dim = self._head_fields()["head_dim"]
        rotary_dim = self._integer("rope.dimension_count", head_dim)
        limit = self._integer("context_length")
        original = self._integer("rope.scaling.original_context_length", limit)
        if original < 2:
            raise self._error("rope.scaling.original_context_length", "must be > 1")
        scaling = {
            "rope_type": "longrope",
            "original_max_position_embeddings": original,
            "long_factor": list(self._rope_factors(LONG_FACTORS, rotary_dim)),
            "short_factor": list(self._rope_factors(SHORT_FACTORS, rotary_dim)),
        }
        usual = longrope_attention(limit / original, original)
        return (
            scaling
            if math.isclose(attention, usual, rel_tol=1e-6)
            else scaling | {"attention_factor": attention}
        )

    def _rope_factors(self, name: str, rotary_dim: int) -> tuple[float, ...]:
        tensor = self.file.tensors.get(name)
        got = "none" if tensor is None else f"{tensor.layout.name} {tensor.shape}"
        if tensor is None or got != f"F32 {(rotary_dim // 2,)}":
            raise ModelLoadError(
                f"[load] {self.file.path}: {name} must be F32 ({rotary_dim // 2},); got {got}."
            )
        factors = np.frombuffer(self.file.data(name), np.float32)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise ModelLoadError(
                f"[load] {self.file.path}: {name} must be finite and > 0; got others."
            )
        return tuple(factors.tolist())

    def _vocab_size(self) -> int:
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelLoadError(
                f"[load] {self.file.path} must hold token_embd.weight; got none (tensors of other "
                f"names: {len(self.file.tensors)}). A vocabulary alone is not a model."
            )
        self._same("vocab_size", embedding.shape[0])
        num_tokens = len(self.file.texts("tokenizer.ggml.tokens"))
        if num_tokens > embedding.shape[0]:
            raise ModelLoadError(
                f"[load] {self.file.path}: tokenizer.ggml.tokens must have at most "
                f"{embedding.shape[0]} elements, the rows of token_embd.weight; got {num_tokens}."
            )
        return embedding.shape[0]

    def _pooling(self, usual: PoolingConfig) -> PoolingConfig:
        """Return how vectors are made; files of models with classes say what those are given."""
        kinds = {number: kind for kind, number in POOLING.items()}
        number = self.values.get("pooling_type", 0)
        if type(number) is not int or number not in {0, RANKING, *kinds}:
            raise self._error("pooling_type", f"must be one of {', '.join(map(str, kinds))}")
        return replace(usual, kind=kinds[number]) if number in kinds else usual

    def _spelled(self, field: str, value: Any) -> Any:
        if field == "id2label":
            texts = self.file.texts(f"{self.name}.{self.keys[field]}")
            return {str(number): text for number, text in enumerate(texts)}
        spelled = self.architecture.spelled.get(field, {})
        return spelled[value] if spelled else value

    def _at_most(self, key: str, limit: int, what: str) -> None:
        # Names are made for each layer and expert before tensors are looked for.
        value = self.values.get(key, 0)
        if type(value) is not int or value > limit:
            raise self._error(key, f"must be an integer of at most {limit}, {what}")

    def _integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if type(value) is not int or not 0 <= value < 2**31:
            raise self._error(key, "must be an integer >= 0 and < 2**31")
        return value

    def _same(self, key: str, value: float) -> None:
        if self.values.get(key, value) != value:
            raise self._error(key, f"must be {value}, as its tensors and other keys say")

    def _refuse_options(self) -> None:
        values, used = self.values, set(self.keys.values())
        if self.architecture.mscale_unit:
            used.add("rope.scaling.yarn_log_multiplier")
        options = {key: allowed for key, allowed in NEUTRAL.items() if key not in used}
        for key, allowed in {**options, **self.architecture.neutral}.items():
            if key in values and values[key] not in allowed:
                raise UnsupportedArchitectureError(
                    f"{self._error(key, 'is an option that Quire does not implement')} "
                    "Use a model without it."
                )
        known = {*used, *NEUTRAL, *OTHER_KEYS}
        unknown = sorted(set(values) - known)
        if unknown:
            log.warning("%s: keys not known to Quire have no effect: %s", self.file.path, unknown)

    def _error(self, key: str, rule: str) -> ModelLoadError:
        got = repr(self.values.get(key))[:80]
        return ModelLoadError(f"[load] {self.file.path}: {self.name}.{key} {rule}; got {got}.")


def _uniform(file: GgufHeader, key: str, value: Any) -> Any:
    """Return the one number that a list per layer repeats; other values as they are."""
    if not isinstance(value, array) or key.endswith(WINDOW_PATTERN):
        return value
    if len(set(value)) != 1:
        raise UnsupportedArchitectureError(
            f"[load] {file.path}: {key} must be the same in all layers; got {list(value[:8])}. "
            "Quire does not implement layers of different sizes."
        )
    return value[0]


def _dtype(file: GgufHeader) -> str:
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

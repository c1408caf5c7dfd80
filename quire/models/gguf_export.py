"""A checkpoint folder as metadata and tensors of a GGUF file, all but the tokenizer."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import ConfigError, ModelLoadError, UnsupportedArchitectureError
from quire.core.model_config import ModelConfig
from quire.kernels.block_matrix import CHUNK
from quire.layers.rope import inverse_frequencies
from quire.models.checkpoint import Checkpoint
from quire.models.config_reader import read_model_config
from quire.models.gguf_checkpoint import row_order
from quire.models.gguf_mix import Mix
from quire.models.gguf_names import ROPE_FACTORS, gguf_family
from quire.models.gguf_writer import TensorPlan
from quire.models.importance_matrix import ImportanceMatrix
from quire.models.registry import get_family
from quire.models.tensor_source import check_tensors, map_weights
from quire.models.weight_map import WeightMap
from quire.quantization.gguf_layouts import LAYOUTS
from quire.quantization.producers.gguf_quantize import quantize_rows

log = logging.getLogger(__name__)

QUANTIZATION_VERSION = 2
HALF_MAX = 65504.0
#: Magnitudes whose scale is a finite float16; of other types those that are float16 themselves.
LARGEST = {"Q8_0": 127 * HALF_MAX, "Q4_0": 8 * HALF_MAX, "F32": math.inf, "BF16": math.inf}

_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight")
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")
#: Small, and read as float32 by llama.cpp.
_KEPT_FLOAT = re.compile(r"blk\.\d+\.ffn_gate_inp\.weight|position_embd\.weight")


@dataclass(frozen=True, slots=True)
class _Source:
    """One tensor of the folder and how its rows are ordered in the file."""

    name: str
    transposed: bool = False
    order: np.ndarray | None = None


class GgufExport:
    """What a GGUF file of a checkpoint holds.

    Args:
        folder: In Hugging Face's layout.
        type_name: One of :data:`quire.models.gguf_mix.MIXES`. Vectors are F32; matrices whose rows
            are no whole number of blocks have another type, as in llama.cpp.
        pure: All matrices have the type of most.
        importance: Says how much errors of inputs count; None where all count alike.
        threads: How many look for codes.

    Attributes:
        config: Of the checkpoint.
        metadata: Everything but the tokenizer's.
        tensors: In the order of the file.

    Raises:
        ModelLoadError: The checkpoint is damaged, or has what a GGUF file cannot say.
        ConfigError: The type needs an importance, and there is none for a matrix.
    """

    def __init__(
        self,
        folder: Path,
        type_name: str,
        *,
        pure: bool = False,
        importance: ImportanceMatrix | None = None,
        threads: int = 1,
    ) -> None:
        self.config = config = read_model_config(folder)
        self._checkpoint = Checkpoint(folder)
        self._family = gguf_family(config.architecture)
        self._mix = Mix(type_name, config, pure, importance is not None)
        self._importance, self._threads = importance, threads
        self.metadata: dict[str, Any] = {
            "general.architecture": self._family.architecture,
            "general.type": "model",
            "general.name": folder.resolve().name,
            "general.file_type": self._mix.file_type,
        }
        if LAYOUTS[self._mix.main].is_quantized:
            self.metadata["general.quantization_version"] = QUANTIZATION_VERSION
        options = _model_metadata(config, folder)
        self.metadata |= {f"{self._family.architecture}.{key}": v for key, v in options.items()}
        self.tensors = self._plans()

    def _plans(self) -> list[TensorPlan]:
        """Pair our names with the file's: both come from the same map, in the same order."""
        config = self.config
        weights = map_weights(self._checkpoint, config)
        names, ours = weights.names, weights.shapes()
        tied = (re.escape(f"{names.head}.weight"),) if config.tie_word_embeddings else ()
        check_tensors(self._checkpoint, ours, (*names.harmless, *tied))
        sources: dict[str, list[_Source]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for (name, stored), (gguf_name, shape) in zip(ours.items(), _shapes(config), strict=True):
            # A square matrix looks the same either way, so the family decides, not the shape.
            names = get_family(config.architecture).weight_names(config)
            is_transposed = names.linear_is_transposed
            transposed = is_transposed and gguf_name.startswith("blk.") and len(stored) == 2
            source = _Source(name, transposed, self._order(gguf_name))
            sources.setdefault(gguf_name, []).append(source)
            shapes[gguf_name] = shape
        plans = [self._plan(name, shapes[name], parts) for name, parts in sources.items()]
        if config.rope and config.rope.scaling and config.rope.scaling["rope_type"] == "llama3":
            plans.append(self._rope_factors())
        return plans

    def _order(self, name: str) -> np.ndarray | None:
        match = _ROTATED.fullmatch(name)
        if match is None or not self._family.interleaved_rope:
            return None
        heads = self.config.num_heads if match[1] == "q" else self.config.num_kv_heads
        return np.argsort(row_order(heads, self.config))

    def _plan(self, name: str, shape: tuple[int, ...], sources: list[_Source]) -> TensorPlan:
        if len(shape) == 1 or _KEPT_FLOAT.fullmatch(name):
            type_name = "F32"
        else:
            type_name = self._mix.type_of(name, shape[-1])
            if shape[-1] % LAYOUTS[self._mix.main].block_size:
                log.warning(
                    "%s: rows of %d are no whole number of %s blocks; written as %s",
                    name, shape[-1], self._mix.main, type_name,
                )  # fmt: skip
        counts: list[np.ndarray | None] = [None] * len(sources)
        if self._importance is not None and LAYOUTS[type_name].is_quantized:
            counts = self._importance.of_tensor(name, len(sources), shape[-1])
        if counts[0] is None and len(shape) > 1 and self._mix.needs_importance(name, shape[-1]):
            raise ConfigError(
                f"[convert] --imatrix must say how much errors of {name} count for {type_name}; "
                "got nothing. Make one with quire imatrix, or take iq3_s, q2_k or more bits."
            )
        return TensorPlan(
            name, LAYOUTS[type_name], shape, partial(self._chunks, type_name, sources, counts)
        )

    def _chunks(
        self, type_name: str, sources: list[_Source], importance: list[np.ndarray | None]
    ) -> Iterator[bytes]:
        largest = LARGEST.get(type_name, HALF_MAX)
        for source, counts in zip(sources, importance, strict=True):
            tensor = self._checkpoint.tensor(source.name)
            array = tensor.array.T if source.transposed else tensor.array
            if source.order is not None:
                array = array[source.order]
            rows = array if array.ndim > 1 else array[None]
            step = max(1, CHUNK // rows.shape[1])
            for begin in range(0, len(rows), step):
                part = np.ascontiguousarray(rows[begin : begin + step])
                values = type(tensor)(source.name, tensor.dtype, part).float32()
                # Not greater: NaN is neither.
                if largest < math.inf and not np.abs(values).max() <= largest:
                    raise ModelLoadError(
                        f"[convert] {source.name} must fit the float16 of {type_name}; got "
                        f"{np.abs(values).max():g}. Use --type bf16 or f32."
                    )
                yield quantize_rows(type_name, values, counts, self._threads).tobytes()
            self._checkpoint.release(source.name)

    def _rope_factors(self) -> TensorPlan:
        rope = self.config.rope
        assert rope is not None
        plain = type(rope)(theta=rope.theta, rotary_dim=rope.rotary_dim)
        scaled, _ = inverse_frequencies(rope, 1)
        factors = inverse_frequencies(plain, 1)[0] / scaled
        chunks = partial(iter, [factors.astype(np.float32).tobytes()])
        return TensorPlan(ROPE_FACTORS, LAYOUTS["F32"], factors.shape, chunks)


def tensor_names(folder: Path) -> dict[str, list[str]]:
    """Return which tensors of a checkpoint a GGUF file's tensors hold: one, or one per expert."""
    config = read_model_config(folder)
    found: dict[str, list[str]] = {}
    names = map_weights(Checkpoint(folder), config).shapes()
    for name, (gguf_name, _) in zip(names, _shapes(config), strict=True):
        found.setdefault(gguf_name, []).append(name)
    return found


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes in the file, in our order; an expert's are those of all of them."""
    for name, shape in WeightMap(config, gguf_family(config.architecture).names).shapes().items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            yield name, shape
        else:
            assert config.moe is not None
            yield f"{match[1]}_exps.weight", (config.moe.num_experts, *shape)


def _model_metadata(config: ModelConfig, folder: Path) -> dict[str, Any]:
    """Return the keys of the architecture, without its name before them."""
    is_gpt2 = config.architecture == "GPT2LMHeadModel"
    _refuse(folder, "hidden_act", config.activation, "gelu_tanh" if is_gpt2 else "silu")
    _refuse(folder, "layer_types", config.layer_windows, (), (True,) * config.num_layers)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "vocab_size": config.vocab_size,
    }
    if is_gpt2:
        return values | {"attention.layer_norm_epsilon": config.norm_eps}
    values |= {
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    if config.moe is not None:
        values |= {"expert_count": config.moe.num_experts, "expert_used_count": config.moe.top_k}
    if config.sliding_window is not None:
        log.warning("%s: the sliding window is written; not every program keeps to it", folder)
        values["attention.sliding_window"] = config.sliding_window
    return values | _rope_metadata(config, folder)


def _rope_metadata(config: ModelConfig, folder: Path) -> dict[str, Any]:
    rope = config.rope
    assert rope is not None
    values: dict[str, Any] = {
        "rope.dimension_count": rope.rotary_dim,
        "rope.freq_base": rope.theta,
    }
    scaling = rope.scaling
    if scaling is None:
        return values
    kind = scaling["rope_type"]
    if kind == "llama3" and gguf_family(config.architecture).architecture == "llama":
        return values
    _refuse(folder, "rope_type", kind, "linear", "yarn")
    factor = scaling["factor"]
    values |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "linear":
        # Readers stretch the context they find by the factor.
        return values | {"context_length": round(config.max_position_embeddings / factor)}
    _refuse(folder, "truncate", scaling["truncate"], True)
    attention = inverse_frequencies(rope, 1)[1] / (0.1 * math.log(factor) + 1.0)
    values |= {
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
    }
    return values if abs(attention - 1) < 1e-6 else values | {"rope.scaling.attn_factor": attention}


def _refuse(folder: Path, option: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        raise UnsupportedArchitectureError(
            f"[convert] {folder}: {option} must be {' or '.join(map(repr, allowed))}; got "
            f"{value!r:.80}. A GGUF file cannot say this."
        )

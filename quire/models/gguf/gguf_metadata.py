"""A model's configuration as metadata of a GGUF file, and refusal of what it cannot state."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from quire.checkpoints.gguf.gguf_file import GgufHeader, GgufTensor
from quire.checkpoints.gguf.gguf_keys import (
    POOLING,
    WINDOW,
    WINDOW_PATTERN,
)
from quire.checkpoints.gguf.gguf_names import gguf_family
from quire.checkpoints.gguf.gguf_writer import TensorPlan
from quire.core.errors import UnsupportedArchitectureError
from quire.core.model.model_config import ModelConfig, RopeConfig
from quire.core.model.pooling_config import PoolingConfig
from quire.layers.rope import inverse_frequencies
from quire.models.gguf.gguf_architectures import ARCHITECTURES, GgufArchitecture
from quire.models.gguf.gguf_config import read_gguf_config

log = logging.getLogger(__name__)

#: What fields of :class:`ModelConfig` are called in a ``config.json``, for messages.
OPTIONS = {
    "activation": "hidden_act",
    "layer_windows": "layer_types",
    "num_dense_layers": "the number of layers without experts",
    "output_bias": "attention_bias",
    "parallel": "parallel_attn",
    "qkv_bias": "attention_bias",
    "rope_layers": "no_rope_layers",
    "window_rope": "rope_parameters",
}
#: Fields that a file has otherwise, or of which the tokenizer's metadata tell.
_APART = ("architecture", "dtype", "rope", "bos_token_id", "eos_token_ids")


def model_metadata(config: ModelConfig, folder: Path) -> dict[str, Any]:
    """Return the keys of the architecture, without its name before them.

    Raises:
        UnsupportedArchitectureError: The model makes a choice that no key is for.
    """
    architecture = ARCHITECTURES[gguf_family(config.architecture).architecture]
    for name, limit in architecture.limits.items():
        holder = config.rope if name == "rotary_dim" else config
        wanted = limit(config) if callable(limit) else limit
        _refuse(folder, OPTIONS.get(name, name), getattr(holder, name), wanted)
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "vocab_size": config.vocab_size,
    }
    kind = "layer_norm_rms" if config.norm == "rms_norm" else "layer_norm"
    values[f"attention.{kind}_epsilon"] = config.norm_eps
    written = {key: value(config) for key, value in architecture.written.items()}
    written = {key: value for key, value in written.items() if value is not None}
    if config.pooling != PoolingConfig() and config.pooling.kind in POOLING:
        written["pooling_type"] = POOLING[config.pooling.kind]
    if not architecture.rotates:
        return values | written
    values |= {
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
    }
    if config.moe is not None:
        values |= {"expert_count": config.moe.num_experts, "expert_used_count": config.moe.top_k}
        if config.moe.routing.num_groups > 1 and config.moe.routing.group_best == 1:
            log.warning("%s: llama.cpp lets groups count as two experts, not as one", folder)
    if config.sliding_window is not None and not config.chunked:
        values[WINDOW] = config.sliding_window
        if config.layer_windows:
            values[WINDOW_PATTERN] = list(config.layer_windows)
        if not architecture.window_every:
            log.warning("%s: the sliding window is written; not every program keeps to it", folder)
    assert config.rope is not None
    return values | written | _rope_metadata(config.rope, config, folder)


def _rope_metadata(rope: RopeConfig, config: ModelConfig, folder: Path) -> dict[str, Any]:
    name = gguf_family(config.architecture).architecture
    values: dict[str, Any] = {
        "rope.dimension_count": rope.rotary_dim,
        "rope.freq_base": rope.theta,
    }
    scaling = rope.scaling
    if scaling is None:
        return values
    kind = scaling["rope_type"]
    if kind == "llama3" and name in ("llama", "llama4"):
        return values
    longrope = ("longrope",) if name in ("phi3", "llama", "granite") else ()
    _refuse(folder, "rope_type", kind, "linear", "yarn", *longrope)
    values["rope.scaling.type"] = kind
    if kind == "longrope":
        return values | {
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.attn_factor": inverse_frequencies(rope, 1)[1],
        }
    factor = values["rope.scaling.factor"] = scaling["factor"]
    if kind == "linear":
        if not ARCHITECTURES[name].stretches_context:
            return values
        return values | {"context_length": round(config.max_position_embeddings / factor)}
    _refuse(folder, "truncate", scaling["truncate"], ARCHITECTURES[name].truncates)
    multiplier = _multiplier(scaling, ARCHITECTURES[name], folder)
    usual = 0.1 * math.log(factor) + 1.0
    attention = 1.0 if multiplier else inverse_frequencies(rope, 1)[1] / usual
    values |= {
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
    }
    values |= multiplier
    return values if abs(attention - 1) < 1e-6 else values | {"rope.scaling.attn_factor": attention}


def _multiplier(
    scaling: Mapping[str, Any], architecture: GgufArchitecture, folder: Path
) -> dict[str, Any]:
    """Return the key of YaRN's factors on scores, of which a file says one."""
    every = scaling.get("mscale_all_dim", 0.0)
    if not architecture.mscale_unit:
        return {}
    if not every:
        if architecture.equal_mscales:
            _refuse(folder, "mscale_all_dim", every, "a number > 0")
        return {}
    wanted = every if architecture.equal_mscales else 1.0
    _refuse(folder, "mscale", scaling.get("mscale", 1.0), wanted)
    _refuse(folder, "attention_factor", scaling.get("attention_factor"), None)
    return {"rope.scaling.yarn_log_multiplier": architecture.mscale_unit * every}


class PlannedFile(GgufHeader):
    """A file that is not written yet.

    Args:
        path: Path of the file, for messages.
        metadata, tensors: Metadata and tensors that it will have.
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorPlan]
    ) -> None:
        self.path = path
        self.metadata = dict(metadata)
        self.tensors = {t.name: GgufTensor(t.layout, t.shape, 0, t.nbytes) for t in tensors}
        self._plans = {tensor.name: tensor for tensor in tensors}

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor."""
        return memoryview(b"".join(self._plans[name].chunks()))


def check_file_says(config: ModelConfig, file: PlannedFile) -> None:
    """Read a planned file's configuration, and refuse a model whose own differs.

    Raises:
        UnsupportedArchitectureError: The two differ; the message names the first such choice.
    """
    said = read_gguf_config(file)
    for name in (field.name for field in fields(ModelConfig) if field.name not in _APART):
        got, wanted = getattr(config, name), getattr(said, name)
        if type(got) is float and type(wanted) is float and math.isclose(got, wanted):
            continue
        _refuse(file.path, OPTIONS.get(name, name), got, wanted)
    if config.rope is not None and said.rope is not None:
        # Rows are put in the order in which the file's turn.
        plain = [
            replace(rope, scaling=None, interleaved=False) for rope in (config.rope, said.rope)
        ]
        _refuse(file.path, "rope_parameters", plain[0], plain[1])


def _refuse(folder: Path, option: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        raise UnsupportedArchitectureError(
            f"[convert] {folder}: {option} must be {' or '.join(map(repr, allowed))}; got "
            f"{value!r:.80}. A GGUF file cannot say this."
        )

"""Typed, checked access to the fields of a ``config.json``; not what the fields mean."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Self

from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.system.regular_files import SETTINGS_BYTES, read_regular

log = logging.getLogger(__name__)

#: Options that say nothing about the forward pass: names, training, generation defaults, versions.
# fmt: off
HARMLESS = frozenset(
    {
        "_attn_implementation", "_name_or_path", "architectures", "attention_dropout",
        "attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob",
        "attn_implementation", "attn_pdrop", "bos_token_id", "chunk_size_feed_forward", "dtype",
        "embd_pdrop",
        "eos_token_id", "gradient_checkpointing", "id2label", "initializer_range", "is_decoder",
        "label2id", "max_length", "max_new_tokens", "model_type", "n_ctx",
        "n_special", "num_return_sequences", "output_attentions", "output_hidden_states",
        "output_router_logits", "pad_token_id", "predict_special_tokens", "pretraining_tp",
        "problem_type", "reorder_and_upcast_attn", "resid_pdrop", "return_dict",
        "router_aux_loss_coef", "router_jitter_noise", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "task_specific_params", "temperature", "top_k", "top_p", "torch_dtype",
        "transformers_version", "unk_token_id", "use_cache",
    }
)
# fmt: on

#: Options of other models or formats that change the output, with the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (None, False),
    "attention_chunk_size": (None,),
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "cross_attention_layers": (None, []),
    "embedding_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "is_encoder_decoder": (None, False),
    "logit_scale": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "mrope_section": (None,),
    "no_rope_layer_interval": (None,),
    "no_rope_layers": (None, []),
    "per_layer_config": (None, {}),
    "query_pre_attn_scalar": (None,),
    "qk_layernorm": (None, False),
    "residual_multiplier": (None, 1, 1.0),
    "rope_interleaved": (None, False),
    "use_qk_norm": (None, False),
    "use_mrope": (None, False),
}

#: Of a layer, at most.
MAX_EXPERTS = 1024
#: The most of what a model is built of one by one, about ten times as many as any published one has
#: (126 layers, 512 experts, 128 heads): a larger number would take hours and all memory.
# fmt: off
MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "depth"), 1024),
    **dict.fromkeys(
        (
            "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
            "n_shared_experts", "num_experts_per_tok",
        ), MAX_EXPERTS,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads", "num_key_value_heads", "n_head", "num_heads",
            "sliding_window_pattern", "_sliding_window_pattern",
        ), 4096,
    ),
}
# fmt: on


def read_json(path: Path, max_bytes: int = SETTINGS_BYTES) -> dict[str, Any]:
    """Return the JSON object in ``path``.

    Raises:
        ModelLoadError: No such file, not a regular one, larger, not UTF-8, not JSON, or not an
            object.
    """
    try:
        value = json.loads(read_regular(path, max_bytes))
    except OSError as error:
        raise ModelLoadError(
            f"[load] {path} must be readable; got {error.strerror}. Is this a model folder?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"[load] {path} must be JSON; got {error}. Copy it again.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"[load] {path} must hold an object; got {type(value).__name__}.")
    return value


class ConfigFields:
    """The fields of one JSON object; each access checks the type and is remembered.

    A field that is absent or null has its default; without a default that is an error.

    Args:
        values: The parsed object.
        where: File, and place in it, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.read: set[str] = set()

    def error(self, name: str, rule: str) -> ModelLoadError:
        """Return the error that field ``name`` breaks ``rule``."""
        got = repr(self.values.get(name))
        got = got if len(got) <= 80 else got[:77] + "..."
        return ModelLoadError(f"[load] {self.where}: {name} {rule}; got {got}.")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self.read.add(name)
        return self.values.get(name) is not None

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Return the fields with other values of some; what is read of it counts as read here."""
        made = copy(self)
        made.values = {**self.values, **values}
        return made

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Return an integer of at least ``minimum`` and below 2**31, or at most :data:`MOST`."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not minimum <= value < 2**31:
            raise self.error(name, f"must be an integer >= {minimum} and < 2**31")
        if value > MOST.get(name, value):
            raise self.error(name, f"must be <= {MOST[name]}")
        return value

    def number(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        """Return a float greater than ``above`` that float32 can hold."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not above < value < 3e38:
            raise self.error(name, f"must be a finite number > {above:g}")
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._value(name, default)
        if type(value) is not bool:
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def strings(self, name: str) -> list[str]:
        """Return a list of strings, empty when absent."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "must be a list of strings")
        return value

    def integers(self, name: str) -> list[int]:
        """Return a list of integers, empty when absent."""
        value = self._value(name, [])
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(name, "must be a list of integers")
        return value

    def object(self, name: str) -> ConfigFields | None:
        """Return the fields of a nested object, or None when absent."""
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return ConfigFields(value, f"{self.where}: {name}") if value else None

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one id or a list of ids as a tuple, empty when absent."""
        value = self._value(name, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(item) is int and 0 <= item < 2**31 for item in ids):
            raise self.error(name, "must be a token id or a list of them")
        return tuple(ids)

    def require(self, name: str, *allowed: Any) -> None:
        """Refuse a field whose value is not null and not one of ``allowed``."""
        if self.has(name) and self.values[name] not in allowed:
            raise UnsupportedArchitectureError(
                str(self.error(name, f"must be {' or '.join(map(repr, allowed)) or 'absent'}"))
                + " Quire does not implement this option."
            )

    def refuse_unread(self) -> None:
        """Refuse options known to change the output; name those that are unknown in the log."""
        unread = sorted(set(self.values) - self.read - HARMLESS)
        for name in unread:
            if name in NEUTRAL and self.values[name] not in NEUTRAL[name]:
                raise UnsupportedArchitectureError(
                    f"{self.error(name, 'is an option that Quire does not implement')} "
                    "Use a checkpoint without it."
                )
        unknown = [name for name in unread if name not in NEUTRAL]
        if unknown:
            log.warning("%s: options not known to Quire have no effect: %s", self.where, unknown)

    def _value(self, name: str, default: Any) -> Any:
        self.read.add(name)
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "is required")
        return default

"""Reads the rotary embedding of a ``config.json`` in its old and new spellings.

The old one has ``rope_theta`` and ``rope_scaling`` side by side, the new one (transformers 5) a
single ``rope_parameters``. Which tables follow from it is decided in :mod:`quire.layers.rope`.
"""

from __future__ import annotations

from typing import Any

from quire.core.errors import UnsupportedArchitectureError
from quire.core.model_config import RopeConfig
from quire.models.config_fields import ConfigFields

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


def read_rope(
    config: ConfigFields, head_dim: int, *, default_theta: float = 10_000.0
) -> tuple[RopeConfig, int]:
    """Return the rotary embedding and the longest context it serves, in tokens.

    The context is ``max_position_embeddings``, times ``factor`` where the scaling stretches it.

    Raises:
        UnsupportedArchitectureError: A ``rope_type`` that is not in :data:`ROPE_TYPES`.
        ModelLoadError: A parameter is missing or out of range.
    """
    old, new = config.object("rope_scaling"), config.object("rope_parameters")
    nested = old or new or ConfigFields({}, config.where)
    theta = _holder("rope_theta", nested, config)
    partial = _holder("partial_rotary_factor", nested, config)
    fraction = partial.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * fraction)
    if fraction > 1.0 or rotary_dim < 2 or rotary_dim % 2:
        raise partial.error("partial_rotary_factor", f"must rotate an even part of {head_dim}")
    limit = config.integer("max_position_embeddings")
    nested.has("type")
    kind = "rope_type" if nested.has("rope_type") else "type"
    rope_type = nested.text(kind, "default")
    if rope_type not in ROPE_TYPES:
        raise UnsupportedArchitectureError(
            f"{nested.error(kind, 'is not supported')} Supported: {', '.join(ROPE_TYPES)}."
        )
    # Some makers name the length before stretching next to the scaling, and that one counts.
    name = "original_max_position_embeddings"
    nested.has(name)
    original = (config if config.has(name) else nested).integer(name, limit)
    scaling, context = _read_scaling(nested, rope_type, limit, original)
    nested.refuse_unread()
    base = theta.number("rope_theta", default_theta, above=1.0)
    return RopeConfig(theta=base, rotary_dim=rotary_dim, scaling=scaling), context


def _holder(name: str, nested: ConfigFields, config: ConfigFields) -> ConfigFields:
    """Return where ``name`` is; both places count as read."""
    config.has(name)
    return nested if nested.has(name) else config


def _read_scaling(
    fields: ConfigFields, rope_type: str, limit: int, original: int
) -> tuple[dict[str, Any] | None, int]:
    if rope_type == "default":
        fields.has("factor")
        return None, limit
    if rope_type in ("linear", "dynamic"):
        # These stretch the context the configuration names, wherever it began.
        original = limit
    factor = fields.number("factor", limit / original if rope_type == "yarn" else None)
    if factor < 1.0:
        raise fields.error("factor", "must be >= 1")
    scaling: dict[str, Any] = {
        "rope_type": rope_type,
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    if rope_type == "llama3":
        scaling["low_freq_factor"] = fields.number("low_freq_factor")
        scaling["high_freq_factor"] = fields.number("high_freq_factor")
        if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
            raise fields.error("high_freq_factor", "must be > low_freq_factor")
        return scaling, limit
    if rope_type == "yarn":
        scaling["beta_fast"] = fields.number("beta_fast", 32.0)
        scaling["beta_slow"] = fields.number("beta_slow", 1.0)
        scaling["truncate"] = fields.boolean("truncate", True)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if fields.has(name):
                scaling[name] = fields.number(name, above=-1.0)
    return scaling, max(limit, int(original * factor))

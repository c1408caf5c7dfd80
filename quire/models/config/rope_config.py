"""Reads the rotary embedding of a ``config.json`` in its old and new spellings.

The old one has ``rope_theta`` and ``rope_scaling`` side by side, the new one (transformers 5) a
single ``rope_parameters``. Which tables follow from it is decided in :mod:`quire.layers.rope`.
"""

from __future__ import annotations

from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.errors import UnsupportedArchitectureError
from quire.core.model.model_config import RopeConfig

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def read_rope(
    config: ConfigFields,
    head_dim: int,
    *,
    default_theta: float = 10_000.0,
    default_fraction: float = 1.0,
    interleaved: bool = False,
) -> tuple[RopeConfig, int]:
    """Return the rotary embedding and the longest context it serves, in tokens.

    The context is ``max_position_embeddings``, times ``factor`` where the scaling stretches it.

    Raises:
        UnsupportedArchitectureError: A ``rope_type`` that is not in :data:`ROPE_TYPES`.
        ModelLoadError: A parameter is missing or out of range.
    """
    old, new = config.object("rope_scaling"), config.object("rope_parameters")
    nested = old or new or ConfigFields({}, config.where)
    return _read(config, nested, head_dim, default_theta, default_fraction, interleaved)


def read_ropes(
    config: ConfigFields, head_dim: int, *, default_theta: float, window_theta: float | None = None
) -> tuple[RopeConfig, RopeConfig, int]:
    """Return the rotary embedding of layers that see all, that of those with a window, and the
    longest context.

    ``rope_parameters`` has one of each; in the old spelling the second is unscaled and has the base
    ``rope_local_base_freq``, by default ``window_theta``, or the other's base where that is None.
    """
    config.has("rope_local_base_freq")
    both = config.object("rope_parameters")
    if both is None or both.object("full_attention") is None:
        rope, context = read_rope(config, head_dim, default_theta=default_theta)
        theta = config.number("rope_local_base_freq", window_theta or rope.theta, above=1.0)
        return rope, RopeConfig(theta=theta, rotary_dim=rope.rotary_dim), context
    parts = [both.object(kind) for kind in ("full_attention", "sliding_attention")]
    (rope, context), (window, _) = (
        _read(config, part or ConfigFields({}, config.where), head_dim, theta, 1.0, False)
        for part, theta in zip(parts, (default_theta, window_theta or default_theta), strict=True)
    )
    both.refuse_unread()
    return rope, window, context


def _read(
    config: ConfigFields,
    nested: ConfigFields,
    head_dim: int,
    default_theta: float,
    default_fraction: float,
    interleaved: bool,
) -> tuple[RopeConfig, int]:
    theta = _holder("rope_theta", nested, config)
    partial = _holder("partial_rotary_factor", nested, config)
    fraction = partial.number("partial_rotary_factor", default_fraction)
    rotary_dim = int(head_dim * fraction)
    if fraction > 1.0 or rotary_dim < 2 or rotary_dim % 2:
        raise partial.error("partial_rotary_factor", f"must rotate an even part of {head_dim}")
    limit = config.integer("max_position_embeddings")
    nested.has("type")
    kind = "rope_type" if nested.has("rope_type") else "type"
    rope_type = nested.text(kind, "default")
    rope_type = {"su": "longrope"}.get(rope_type, rope_type)
    if rope_type not in ROPE_TYPES:
        raise UnsupportedArchitectureError(
            f"{nested.error(kind, 'is not supported')} Supported: {', '.join(ROPE_TYPES)}."
        )
    # Some makers name the length before stretching next to the scaling, and that one counts.
    name = "original_max_position_embeddings"
    nested.has(name)
    original = (config if config.has(name) else nested).integer(name, limit)
    scaling, context = _read_scaling(nested, rope_type, limit, original)
    if scaling is not None and rope_type == "longrope":
        scaling |= _read_factors(nested, rotary_dim // 2)
    nested.refuse_unread()
    base = theta.number("rope_theta", default_theta, above=1.0)
    rope = RopeConfig(theta=base, rotary_dim=rotary_dim, scaling=scaling, interleaved=interleaved)
    return rope, context


def _read_factors(fields: ConfigFields, count: int) -> dict[str, tuple[float, ...]]:
    """Read LongRoPE's factors, one for each pair of elements."""
    found = {}
    for name in ("short_factor", "long_factor"):
        fields.has(name)
        values = fields.values.get(name)
        if not isinstance(values, list) or len(values) != count:
            raise fields.error(name, f"must be a list of {count} numbers")
        if not all(type(x) in (int, float) and 0 < x < 3e38 for x in values):
            raise fields.error(name, "must be numbers > 0")
        found[name] = tuple(map(float, values))
    return found


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
    stretches = rope_type in ("yarn", "longrope")
    factor = fields.number("factor", limit / original if stretches else None)
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
        if scaling["high_freq_factor"] < scaling["low_freq_factor"]:
            raise fields.error("high_freq_factor", "must be >= low_freq_factor")
        return scaling, limit
    if rope_type == "longrope":
        # The factor on cosines is in units of its logarithm.
        if original < 2:
            raise fields.error("original_max_position_embeddings", "must be > 1")
        if fields.has("attention_factor"):
            scaling["attention_factor"] = fields.number("attention_factor")
        return scaling, limit
    if rope_type == "yarn":
        scaling["beta_fast"] = fields.number("beta_fast", 32.0)
        scaling["beta_slow"] = fields.number("beta_slow", 1.0)
        scaling["truncate"] = fields.boolean("truncate", True)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if fields.has(name):
                scaling[name] = fields.number(name, above=-1.0)
    return scaling, max(limit, int(original * factor))

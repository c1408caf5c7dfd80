"""The error for an unknown architecture: the known one that is near it, and what differs."""

from __future__ import annotations

from difflib import SequenceMatcher
from logging import LogRecord

from quire.checkpoints.config_fields import HARMLESS, NEUTRAL, ConfigFields, log
from quire.checkpoints.quantized.quantization_config import KEYS
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError
from quire.core.suggestions import MAX_NAME
from quire.models.config.registry import FAMILIES

PLAINEST = "LlamaForCausalLM"
#: Fields that say nothing of a model's shape.
SILENT = HARMLESS | {
    *KEYS, "_commit_hash", "_from_model_config", "auto_map", "max_sequence_length",
    "model_max_length", "template_version", "tokenizer_class",
}  # fmt: skip
#: A family is near that differs by at most as many fields.
MAX_DIFFERENCES = 4


def refuse_architecture(name: str, fields: ConfigFields) -> UnsupportedArchitectureError:
    """Return the error for an architecture, one sentence of the family whose fields are nearest.

    Args:
        name: Name that is not one of ``FAMILIES``.
        fields: Fields of its ``config.json``.
    """
    name = name[:MAX_NAME]
    log.addFilter(_nothing)  # readers tell of options in parts of a configuration
    found = {} if _has_parts(fields) else {each: _differences(each, fields) for each in FAMILIES}
    log.removeFilter(_nothing)
    near = {each: d for each, d in found.items() if d is not None and len(d) <= MAX_DIFFERENCES}
    known = "docs/models.md has all of them, and how one is added."
    rule = f"[load] {fields.where}: architectures must name one that Quire knows; got {name}"
    if not near:
        return UnsupportedArchitectureError(f"{rule}, to which none is near. {known}")
    # Where several are as near, the plainest is meant, or the one of the likest name.
    nearest, named = min(
        near.items(), key=lambda one: (len(one[1]), one[0] != PLAINEST, -_likeness(name, one[0]))
    )
    differs = ", ".join(named)
    what = f"it differs by {differs}" if named else "no field of config.json tells them apart"
    return UnsupportedArchitectureError(f"{rule}, to which {nearest} is nearest: {what}. {known}")


def _has_parts(fields: ConfigFields) -> bool:
    """Return whether a model is made of several, of which a reader may see one alone."""
    return any(
        name.endswith("_config") and isinstance(value, dict) and name not in KEYS
        for name, value in fields.values.items()
    )


def _differences(family: str, fields: ConfigFields) -> list[str] | None:
    """Return the fields that a family's reader does not know; None where it is another family."""
    read = ConfigFields(fields.values, fields.where)
    try:
        config = FAMILIES[family].read_config(read)
    except ModelLoadError:
        return None
    if config.moe is not None and not any("expert" in name for name in read.values):
        return None
    unread = set(read.values) - read.read - SILENT
    return sorted(key for key in unread if read.values[key] not in NEUTRAL.get(key, ()))


def _nothing(record: LogRecord) -> bool:
    return False


def _likeness(name: str, family: str) -> float:
    return SequenceMatcher(None, name, family).ratio()

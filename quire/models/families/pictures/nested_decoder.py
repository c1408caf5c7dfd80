"""Decoders that are a part of a model that reads pictures: their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.core.model.vision_config import VisionConfig
from quire.models.families.llama import read_architecture


@dataclass(frozen=True, slots=True)
class NestedDecoder:
    """The decoder that a ``text_config`` of some ``model_type`` is read as.

    Attributes:
        read: Reader of its family.
        architecture: The class that it is otherwise stored as.
        defaults: Values of fields that files leave out: transformers' own, where the reader has
            others.
    """

    read: Callable[[ConfigFields], ModelConfig]
    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


def read_nested(
    config: ConfigFields,
    decoders: Mapping[str, NestedDecoder],
    default: str,
    read_vision: Callable[[ConfigFields], VisionConfig],
) -> ModelConfig:
    """Read a model that is a picture encoder and a decoder.

    Args:
        config: The checkpoint's configuration, with a ``text_config``.
        decoders: Decoders by ``model_type``.
        default: The ``model_type`` where the ``text_config`` names none.
        read_vision: Function that reads the picture encoder's configuration.
    """
    text = config.object("text_config")
    if text is None:
        raise config.error("text_config", "must be given")
    model_type = text.text("model_type", default)
    if model_type not in decoders:
        raise text.error("model_type", f"must be one of {', '.join(decoders)}")
    decoder = decoders[model_type]
    values = {**decoder.defaults, **text.values, "architectures": [decoder.architecture]}
    if config.has("tie_word_embeddings") and "tie_word_embeddings" not in text.values:
        values["tie_word_embeddings"] = config.values["tie_word_embeddings"]
    fields = ConfigFields(values, text.where)
    made = decoder.read(fields)
    fields.has("model_type")
    fields.refuse_unread()
    vision = read_vision(config)
    writing = vision.writing
    for token_id in (writing.mark_id, writing.row_id, *writing.before, *writing.after):
        if token_id >= made.vocab_size:
            raise config.error(
                _field_of(config, token_id),
                f"must be below the vocabulary's size ({made.vocab_size})",
            )
    config.has("vocab_size")
    return replace(made, architecture=read_architecture(config), vision=vision)


def _field_of(config: ConfigFields, token_id: int) -> str:
    """Return which field has a token's id."""
    names = [name for name, value in config.values.items() if value == token_id]
    return names[0] if names else "text_config"

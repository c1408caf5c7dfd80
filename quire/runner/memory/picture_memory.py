"""The memory that pictures take: rows that are kept, and buffers of the encoder."""

from __future__ import annotations

from quire.core.model.model_config import ModelConfig
from quire.models.vision.encoding_memory import encoding_bytes
from quire.settings.resolve import ResolvedConfig

#: Bytes of kept rows of pictures, unless a step needs more; small models keep a part of their
#: weights' bytes.
MOST_KEPT_BYTES = 128 * 2**20
PART_OF_WEIGHTS = 4


def kept_bytes(config: ModelConfig, resolved: ResolvedConfig, weight_bytes: int) -> int:
    """Return the memory for rows of pictures, enough for those that one step computes.

    Args:
        config: Shape of a model that reads pictures.
        resolved: The settings.
        weight_bytes: Bytes of the model's weights.
    """
    assert config.vision is not None, "a model of text"
    # A step may begin in a picture and end in another one; a picture longer than the longest
    # prompt is never computed.
    most = min(config.vision.most_tokens, resolved.max_model_len)
    rows = resolved.config.scheduler.max_num_batched_tokens + 2 * most
    return max(4 * config.hidden_size * rows, min(MOST_KEPT_BYTES, weight_bytes // PART_OF_WEIGHTS))


def picture_bytes(config: ModelConfig, resolved: ResolvedConfig, weight_bytes: int) -> int:
    """Return the bytes that pictures take of an engine's memory, at most, without their pixels."""
    if config.vision is None or resolved.config.model.pictures_per_prompt() == 0:
        return 0
    encoding = encoding_bytes(config.vision, config.hidden_size, resolved.max_model_len)
    return encoding + kept_bytes(config, resolved, weight_bytes)

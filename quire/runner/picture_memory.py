"""The memory that reading pictures takes: what is kept of them, and what encoding needs."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.core.resolve import ResolvedConfig
from quire.models.vision.encoding_memory import encoding_bytes

#: For the rows of pictures that were encoded, of large models; of others a part of their weights.
MOST_KEPT_BYTES = 128 * 2**20
_PART_OF_WEIGHTS = 4


def kept_bytes(config: ModelConfig, step_tokens: int, max_model_len: int, weight_bytes: int) -> int:
    """Return the memory for rows of pictures; 0 for a model of text.

    Those that a step computes fit in any case.

    Args:
        config: The model's.
        step_tokens: Of a step.
        max_model_len: Of a request; a larger picture is never computed.
        weight_bytes: Its weights.
    """
    if config.vision is None:
        return 0
    # A step may begin in a picture and end in another one.
    rows = step_tokens + 2 * min(config.vision.most_tokens, max_model_len)
    of_a_step = 4 * config.hidden_size * rows
    return max(of_a_step, min(MOST_KEPT_BYTES, weight_bytes // _PART_OF_WEIGHTS))


def picture_bytes(config: ModelConfig, resolved: ResolvedConfig, weight_bytes: int) -> int:
    """Return what pictures take of an engine's memory at most, apart from their pixels."""
    most = resolved.config.model.pictures_per_prompt()
    if config.vision is None or most == 0:
        return 0
    step_tokens = resolved.config.scheduler.max_num_batched_tokens
    longest = resolved.max_model_len
    kept = kept_bytes(config, step_tokens, longest, weight_bytes)
    return kept + encoding_bytes(config.vision, config.hidden_size, longest)

"""Rules that settings of steps must meet, so that each request can be computed."""

from __future__ import annotations

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.settings.config import SchedulerOptions


def check_steps(options: SchedulerOptions, model_config: ModelConfig, max_model_len: int) -> None:
    """Refuse settings with which a request could never be computed.

    Raises:
        ConfigError: The settings contradict each other.
    """
    if not options.enable_chunked_prefill:
        if options.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                "[config] without chunked prefill --max-num-batched-tokens must be at least "
                f"--max-model-len ({max_model_len}); got {options.max_num_batched_tokens}."
                " Raise it, or keep chunked prefill on."
            )
        if options.long_prefill_token_threshold:
            raise ConfigError(
                "[config] --long-prefill-token-threshold needs chunked prefill; got "
                f"{options.long_prefill_token_threshold} without. Drop one of the two."
            )
    _check_pictures(options, model_config)


def _check_pictures(options: SchedulerOptions, model_config: ModelConfig) -> None:
    """Refuse steps that have no room for a picture whose rows must be computed together."""
    vision = model_config.vision
    if vision is None or not vision.sees_ahead:
        return
    least = vision.least_tokens + options.max_num_seqs
    if options.max_num_batched_tokens < least:
        raise ConfigError(
            "[config] --max-num-batched-tokens must hold a picture of this model and a token of "
            f"each other request, {vision.least_tokens} + {options.max_num_seqs}; got "
            f"{options.max_num_batched_tokens}. Raise it, or lower --max-num-seqs."
        )

"""The engine's settings as a model needs them: encoders compute prompts whole, and keep no KV."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.settings.config import EngineConfig


def fit_to_model(config: EngineConfig, model_config: ModelConfig) -> EngineConfig:
    """Return the settings of an engine for this model; the same ones where it generates.

    Raises:
        ConfigError: A setting is for models that generate.
    """
    refused = (
        ("--speculative-config", bool(config.speculative.methods())),
        ("--enable-lora", config.adapters.enable_lora),
    )
    for flag, is_given in refused:
        if is_given and not model_config.generates:
            raise ConfigError(
                f"[config] {flag} needs a model that generates; got "
                f"{model_config.architecture}. Leave it out."
            )
    if not model_config.is_encoder:
        return config
    if config.offload.ram_bytes or config.offload.num_slow:
        raise ConfigError(
            "[config] --kv-offload-* needs a model with a KV cache; got "
            f"{model_config.architecture}, an encoder. Leave it out."
        )
    return replace(
        config,
        scheduler=replace(config.scheduler, enable_chunked_prefill=False),
        cache=replace(config.cache, enable_prefix_caching=False),
    )

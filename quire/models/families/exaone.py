"""EXAONE 4: norms of what a part gives and of each head; windows, and no RoPE in other layers."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama


def read_exaone4(config: ConfigFields) -> ModelConfig:
    """Read an Exaone4ForCausalLM: layers that see all turn nothing where others have a window."""
    head_dim = llama.read_head_dim(config)
    rope, _ = read_rope(config, head_dim)
    every = 4
    if isinstance(config.values.get("sliding_window_pattern"), int):
        every = config.integer("sliding_window_pattern", 4, minimum=0)
    # The first files spell the layers, such as LLLG.
    config.has("sliding_window_pattern")
    is_null = "sliding_window" in config.values and not config.has("sliding_window")
    windows = {}
    if not is_null:
        pattern = ["sliding_attention"] * max(every - 1, 0) + ["full_attention"]
        windows = llama.read_windows(config, 4096, pattern)
        windows["rope_layers"] = windows["layer_windows"]
    elif set(config.strings("layer_types")) - {"full_attention"}:
        raise config.error("layer_types", "must be full_attention without a sliding window")
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        norm_placement="post",
        qk_norm="rms_of_heads",
        head_dim=head_dim,
        rope=rope,
        **windows,
    )

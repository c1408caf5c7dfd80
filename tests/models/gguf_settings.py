"""Tiny models that a GGUF file can hold, as transformers' settings."""

from __future__ import annotations

from tests.models.conftest import DEEPSEEK_YARN, LLAMA3, MODELS, SHARED

#: Entries of MODELS that a GGUF file can hold.
KEPT = (
    "llama", "llama-biased-tied", "mistral", "mixtral", "qwen2", "qwen3", "gpt2", "granite",
    "gemma", "phi", "phi3-long", "gpt-neox", "gpt-neox-in-turn", "falcon-7b", "falcon-40b",
    "starcoder2", "smollm3", "glm4", "cohere", "ministral",
    "olmoe", "olmo2", "seed-oss", "exaone4-wide", "granite-moe", "granite-moe-shared", "glm4-moe",
    "stablelm", "stablelm-parallel",
)  # fmt: skip
LLAMA4 = {
    **MODELS["llama4"][1],
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "no_rope_layer_interval": 4,
    "num_hidden_layers": 4,
}
MINISTRAL3 = {
    **MODELS["ministral3"][1],
    "rope_parameters": {**MODELS["ministral3"][1]["rope_parameters"], "truncate": True},
}
SAME_MSCALES = {**DEEPSEEK_YARN, "mscale": 0.9}
SETTINGS = {
    **{name: MODELS[name] for name in KEPT},
    # llama.cpp takes heads of D / N elements, and scores by the head's size, for granted.
    "cohere2": ("Cohere2", {**MODELS["cohere2"][1], "head_dim": 16}),
    # Experts in all layers or past the first ones, in one group; experts of all layers normed.
    "qwen2-moe": ("Qwen2Moe", {**MODELS["qwen2-moe"][1], "mlp_only_layers": []}),
    "qwen3-moe": ("Qwen3Moe", {**MODELS["qwen3-moe"][1], "decoder_sparse_step": 1}),
    "dots1": (
        "Dots1",
        {
            **MODELS["dots1"][1],
            "n_group": 1,
            "topk_group": 1,
            "max_window_layers": 3,
            "num_key_value_heads": 4,
        },
    ),
    # What its layers see and how queries grow has no key.
    "llama4": ("Llama4", LLAMA4),
    "llama4-scaled": (
        "Llama4",
        {**LLAMA4, "head_dim": 16, "interleave_moe_layer_step": 1, "rope_parameters": LLAMA3},
    ),
    # A ramp of YaRN between whole dims.
    "ministral3": ("Ministral3", MINISTRAL3),
    "ministral3-scored": (
        "Ministral3",
        {
            **MINISTRAL3,
            "rope_parameters": {
                **MINISTRAL3["rope_parameters"],
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
        },
    ),
    "deepseek-v2": MODELS["deepseek-v2"],
    # YaRN's two factors on scores are one number there.
    "deepseek-v2-lite": (
        "DeepseekV2",
        {**MODELS["deepseek-v2-lite"][1], "rope_parameters": SAME_MSCALES},
    ),
    "deepseek-v3": ("DeepseekV3", {**MODELS["deepseek-v3"][1], "rope_parameters": SAME_MSCALES}),
    "ernie": ("Ernie4_5", {**MODELS["ernie"][1], "use_bias": False}),
    # It turns queries and keys of all layers by one base.
    "olmo3": (
        "Olmo3",
        {
            **MODELS["olmo3"][1],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": MODELS["olmo3"][1]["rope_parameters"]["full_attention"],
            },
        },
    ),
    # llama.cpp's ramp of YaRN begins and ends at whole dims, for which the model is not made.
    "gpt-oss": (
        "GptOss",
        {
            **MODELS["gpt-oss"][1],
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
    ),
    "gemma2": ("Gemma2", {**MODELS["gemma2"][1], "query_pre_attn_scalar": 20}),
    "glm": ("Glm", {**SHARED, "head_dim": 16}),
    "gemma3": ("Gemma3", {**MODELS["gemma3"][1], "query_pre_attn_scalar": 20}),
    "gemma3-seven": (
        "Gemma3",
        {
            **{k: v for k, v in MODELS["gemma3"][1].items() if k != "layer_types"},
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 7,
        },
    ),
    "phi3-window": ("Phi3", {**SHARED, "sliding_window": 11}),
    "phi3": MODELS["phi3"],
    "llama-yarn": (
        "Llama",
        {
            **SHARED,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama-linear": (
        "Llama",
        {
            **SHARED,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
    ),
}

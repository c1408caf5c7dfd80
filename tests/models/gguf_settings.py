"""Tiny models that a GGUF file can hold, as transformers' settings."""

from __future__ import annotations

from tests.models.conftest import MODELS, SHARED

#: Entries of MODELS that a GGUF file can hold.
KEPT = (
    "llama", "llama-biased-tied", "mistral", "mixtral", "qwen2", "qwen3", "gpt2", "granite",
    "gemma", "phi", "phi3-long", "gpt-neox", "gpt-neox-in-turn", "falcon-7b", "falcon-40b",
    "starcoder2", "smollm3", "glm4", "cohere", "ministral",
)  # fmt: skip
SETTINGS = {
    **{name: MODELS[name] for name in KEPT},
    # llama.cpp takes heads of D / N elements, and scores by the head's size, for granted.
    "cohere2": ("Cohere2", {**MODELS["cohere2"][1], "head_dim": 16}),
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

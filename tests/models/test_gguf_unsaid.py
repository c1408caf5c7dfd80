"""Models of which a GGUF file cannot say everything: refused, by the name of what it cannot."""

import pytest

from quire.core.errors import UnsupportedArchitectureError
from quire.models.gguf.gguf_export import GgufExport
from tests.models.conftest import DEEPSEEK_YARN, GPT2, MODELS, SHARED
from tests.models.gguf_settings import LLAMA4

PLAIN_YARN = {k: v for k, v in DEEPSEEK_YARN.items() if not k.startswith("mscale")}
UNSAID = {
    "falcon-rw": (*MODELS["falcon-rw"], "attention_bias must be False; got True"),
    "gemma3-scale": ("Gemma3", MODELS["gemma3"][1], r"attention_scale must be 0\.22.*; got 0\.18"),
    "gemma-act": ("Gemma", {**SHARED, "hidden_act": "silu"}, "hidden_act must be 'gelu_tanh'"),
    "smollm3": ("SmolLM3", {**SHARED, "no_rope_layer_interval": 2}, "no_rope_layers must be"),
    "smollm3-rope": (
        "SmolLM3",
        {**SHARED, "rope_parameters": MODELS["llama"][1]["rope_parameters"]},
        "rope_type must be 'linear' or 'yarn'; got 'llama3'",
    ),
    "cohere2": (*MODELS["cohere2"], "head_dim must be 16; got 20"),
    "cohere": ("Cohere", {**SHARED, "tie_word_embeddings": False}, "tie_word_embeddings must be"),
    "qwen2-moe": (*MODELS["qwen2-moe"], "number of layers without experts must be 0; got 1"),
    "qwen3-moe": (*MODELS["qwen3-moe"], "number of layers without experts must be 0; got 2"),
    "llama4": (*MODELS["llama4"], "query_scaling must be QueryScaling"),
    "llama4-chunks": ("Llama4", {**LLAMA4, "attention_chunk_size": 9}, "sliding_window must be 8"),
    "llama4-irregular": ("Llama4", {**LLAMA4, "moe_layers": [0, 3]}, "moe must be"),
    "deepseek-mscale": (*MODELS["deepseek-v3"], "mscale must be 0.9; got 0.7"),
    "deepseek-yarn": (
        "DeepseekV3",
        {**MODELS["deepseek-v3"][1], "rope_parameters": PLAIN_YARN},
        "mscale_all_dim must be 'a number > 0'; got 0.0",
    ),
    "ministral3": (*MODELS["ministral3"], "truncate must be True; got False"),
    "stablelm-tied": ("StableLm", {**SHARED, "tie_word_embeddings": True}, "tie_word_embeddings"),
    "gpt-j": ("GPTJ", {**GPT2, "rotary_dim": 8}, "the architecture must be one of .*; got GPTJ"),
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_a_file_cannot_say_is_refused(name, create_oracle, tmp_path):
    family, settings, message = UNSAID[name]
    create_oracle(family, settings).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=message):
        GgufExport(tmp_path, "F16")

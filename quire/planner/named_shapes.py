"""Shapes of well-known models, for calculators that have no checkpoint at hand.

All follow from each model's published ``config.json`` or paper (GPT-3: Brown et al. 2020, table
2.1); tied matrices count once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.core.model.kv_cache_spec import DTYPE_BYTES, KVCacheSpec

#: A number of parameters: 70B, 1.2b, 350M.
_PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)([mbt])", re.IGNORECASE)
_UNITS = {"m": 10**6, "b": 10**9, "t": 10**12}


def parse_parameters(text: str) -> int | None:
    """Return the number of parameters that is meant by a text such as 70B; None if none is."""
    found = _PARAMETERS.fullmatch(text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2].lower()])


@dataclass(frozen=True, slots=True)
class NamedShape:
    """Sizes of a model's matrices: they say what memory it takes, and what its ranks would send.

    ``num_experts`` is 0 for a dense model; of the experts a token uses two.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    num_experts: int = 0

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of its weights in one element type."""
        return self.num_parameters * DTYPE_BYTES[dtype]

    def kv_spec(self, dtype: str, block_size: int = 16) -> KVCacheSpec:
        """Return the shape of its KV cache."""
        return KVCacheSpec(self.num_layers, self.num_kv_heads, self.head_dim, block_size, dtype)


NAMED_SHAPES: dict[str, NamedShape] = {
    "llama-2-7b": NamedShape(32, 32, 128, 6_738_415_616, 4096, 32, 11008, 32000),
    "llama-2-13b": NamedShape(40, 40, 128, 13_015_864_320, 5120, 40, 13824, 32000),
    "llama-2-70b": NamedShape(80, 8, 128, 68_976_648_192, 8192, 64, 28672, 32000),
    "llama-3.1-8b": NamedShape(32, 8, 128, 8_030_261_248, 4096, 32, 14336, 128256),
    "llama-3.1-70b": NamedShape(80, 8, 128, 70_553_706_496, 8192, 64, 28672, 128256),
    "llama-3.1-405b": NamedShape(126, 8, 128, 405_853_388_800, 16384, 128, 53248, 128256),
    "llama-3.2-1b": NamedShape(16, 8, 64, 1_235_814_400, 2048, 32, 8192, 128256, True),
    "mistral-7b": NamedShape(32, 8, 128, 7_241_732_096, 4096, 32, 14336, 32000),
    "mixtral-8x7b": NamedShape(32, 8, 128, 46_702_792_704, 4096, 32, 14336, 32000, False, 8),
    "qwen3-0.6b": NamedShape(28, 8, 128, 596_049_920, 1024, 16, 3072, 151936, True),
    "gpt-3-175b": NamedShape(96, 96, 128, 174_604_259_328, 12288, 96, 49152, 50257, True),
}

_QWEN2_7B = NamedShape(28, 4, 128, 7_615_616_512, 3584, 28, 18944, 152064)
_QWEN2_3B = NamedShape(36, 2, 128, 3_085_938_688, 2048, 16, 11008, 151936, True)
_QWEN2_2B = NamedShape(28, 2, 128, 1_543_714_304, 1536, 12, 8960, 151936, True)
_QWEN2_1B = NamedShape(24, 2, 64, 494_032_768, 896, 14, 4864, 151936, True)
_QWEN3_4B = NamedShape(36, 8, 128, 4_022_468_096, 2560, 32, 9728, 151936, True)
#: The same by repository of the hub, for the models that have a short name.
REPOSITORY_SHAPES: dict[str, NamedShape] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": NamedShape(
        30, 3, 64, 134_515_008, 576, 9, 1536, 49152, True
    ),
    "HuggingFaceTB/SmolLM2-360M-Instruct": NamedShape(
        32, 5, 64, 361_821_120, 960, 15, 2560, 49152, True
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": NamedShape(
        24, 32, 64, 1_711_376_384, 2048, 32, 8192, 49152, True
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN2_1B,
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN2_2B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN2_3B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN2_7B,
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _QWEN2_1B,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _QWEN2_2B,
    "Qwen/Qwen2.5-Coder-3B-Instruct": _QWEN2_3B,
    "Qwen/Qwen2.5-Coder-7B-Instruct": _QWEN2_7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _QWEN2_7B,
    "Qwen/Qwen3-0.6B": NAMED_SHAPES["qwen3-0.6b"],
    "Qwen/Qwen3-1.7B": NamedShape(28, 8, 128, 1_720_574_976, 2048, 16, 6144, 151936, True),
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Instruct-2507": _QWEN3_4B,
    "Qwen/Qwen3-8B": NamedShape(36, 8, 128, 8_190_735_360, 4096, 32, 12288, 151936),
    "meta-llama/Llama-3.2-1B-Instruct": NAMED_SHAPES["llama-3.2-1b"],
    "meta-llama/Llama-3.2-3B-Instruct": NamedShape(
        28, 8, 128, 3_212_749_824, 3072, 24, 8192, 128256, True
    ),
    "meta-llama/Llama-3.1-8B-Instruct": NAMED_SHAPES["llama-3.1-8b"],
    "mistralai/Mistral-7B-Instruct-v0.3": NamedShape(
        32, 8, 128, 7_248_023_552, 4096, 32, 14336, 32768
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": NamedShape(
        22, 4, 64, 1_100_048_384, 2048, 32, 5632, 32000
    ),
}

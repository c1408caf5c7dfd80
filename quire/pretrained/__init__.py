"""Entry points with the names of transformers, AutoAWQ and AutoGPTQ, on Quire's engine.

Scripts of those libraries run with one changed import. Options that mean nothing here are refused
by name.
"""

from __future__ import annotations

from typing import Any

from quire.pretrained.auto_awq import AutoAWQForCausalLM
from quire.pretrained.auto_gptq import AutoGPTQForCausalLM, BaseQuantizeConfig
from quire.pretrained.auto_model import AutoModelForCausalLM
from quire.pretrained.generation_config import GenerationConfig
from quire.pretrained.quantization_configs import AwqConfig, BitsAndBytesConfig, GPTQConfig

__all__ = [
    "AutoAWQForCausalLM",
    "AutoGPTQForCausalLM",
    "AutoModelForCausalLM",
    "AwqConfig",
    "BaseQuantizeConfig",
    "BitsAndBytesConfig",
    "GPTQConfig",
    "GenerationConfig",
]


def __getattr__(name: str) -> Any:
    if name == "AutoTokenizer":
        # ImportError, because an import of a name drops the text of an AttributeError.
        raise ImportError(
            "[quire.pretrained] AutoTokenizer is not here. Import it from transformers, or take "
            "model.llm.get_tokenizer()."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

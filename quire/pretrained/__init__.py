"""Entry points with the names of transformers, AutoAWQ and AutoGPTQ, on Quire's engine."""

from __future__ import annotations

from quire.pretrained.auto_awq import AutoAWQForCausalLM
from quire.pretrained.auto_gptq import AutoGPTQForCausalLM, BaseQuantizeConfig
from quire.pretrained.auto_model import AutoModelForCausalLM
from quire.pretrained.auto_tokenizer import AutoTokenizer
from quire.pretrained.generation import GenerationConfig
from quire.pretrained.quantization_configs import AwqConfig, BitsAndBytesConfig, GPTQConfig

__all__ = [
    "AutoAWQForCausalLM",
    "AutoGPTQForCausalLM",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "AwqConfig",
    "BaseQuantizeConfig",
    "BitsAndBytesConfig",
    "GPTQConfig",
    "GenerationConfig",
]

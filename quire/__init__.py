"""Quire: an LLM inference and serving engine for the machine you have."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quire.core.suggestions import did_you_mean
from quire.vllm_modules import VllmModules

__version__ = "0.1.0"

if TYPE_CHECKING:
    from quire.core.beam_search_params import BeamSearchParams
    from quire.core.outputs import CompletionOutput, RequestOutput
    from quire.core.sampling_params import RequestOutputKind, SamplingParams
    from quire.core.speculative_params import SpeculativeParams
    from quire.core.structured_outputs import StructuredOutputs
    from quire.core.structured_outputs import StructuredOutputs as GuidedDecodingParams
    from quire.core.structured_outputs import StructuredOutputs as StructuredOutputsParams
    from quire.llm.async_llm import AsyncLLM
    from quire.llm.async_llm import AsyncLLM as AsyncLLMEngine
    from quire.llm.engine_args import EngineArgs
    from quire.llm.engine_args import EngineArgs as AsyncEngineArgs
    from quire.llm.engine_client import Prompt as PromptType
    from quire.llm.engine_client import TextPrompt, TokensPrompt
    from quire.llm.llm import LLM
    from quire.llm.requests.adapter_references import LoRARequest
    from quire.llm.script_flags import FlexibleArgumentParser
    from quire.llm.text_engine import TextEngine as LLMEngine
    from quire.settings.engine_keywords import KvCacheConfig
    from quire.vllm_modules import random_uuid

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "FlexibleArgumentParser",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "LLMEngine",
    "LoRARequest",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "SpeculativeParams",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "random_uuid",
]

#: Where each name lives; several are vLLM's names of a thing.
_HOMES = {
    "LLM": "quire.llm.llm:LLM",
    "AsyncEngineArgs": "quire.llm.engine_args:EngineArgs",
    "AsyncLLM": "quire.llm.async_llm:AsyncLLM",
    "AsyncLLMEngine": "quire.llm.async_llm:AsyncLLM",
    "BeamSearchParams": "quire.core.beam_search_params:BeamSearchParams",
    "CompletionOutput": "quire.core.outputs:CompletionOutput",
    "EngineArgs": "quire.llm.engine_args:EngineArgs",
    "FlexibleArgumentParser": "quire.llm.script_flags:FlexibleArgumentParser",
    "GuidedDecodingParams": "quire.core.structured_outputs:StructuredOutputs",
    "LLMEngine": "quire.llm.text_engine:TextEngine",
    "LoRARequest": "quire.llm.requests.adapter_references:LoRARequest",
    "KvCacheConfig": "quire.settings.engine_keywords:KvCacheConfig",
    "PromptType": "quire.llm.engine_client:Prompt",
    "RequestOutput": "quire.core.outputs:RequestOutput",
    "RequestOutputKind": "quire.core.sampling_params:RequestOutputKind",
    "SamplingParams": "quire.core.sampling_params:SamplingParams",
    "SpeculativeParams": "quire.core.speculative_params:SpeculativeParams",
    "StructuredOutputs": "quire.core.structured_outputs:StructuredOutputs",
    "StructuredOutputsParams": "quire.core.structured_outputs:StructuredOutputs",
    "TextPrompt": "quire.llm.engine_client:TextPrompt",
    "TokensPrompt": "quire.llm.engine_client:TokensPrompt",
    "random_uuid": "quire.vllm_modules:random_uuid",
}
sys.meta_path.append(VllmModules())


def __getattr__(name: str) -> Any:
    # Lazy, so that `quire --help` and the planner never pay for the engine's imports.
    if name not in _HOMES:
        raise AttributeError(
            f"module 'quire' has no attribute {name!r}.{did_you_mean(name, _HOMES)}"
        )
    module, attribute = _HOMES[name].split(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what editors and notebooks complete

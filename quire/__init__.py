"""Quire: an LLM inference and serving engine for the machine you have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from quire.core.sampling_params import RequestOutputKind, SamplingParams
    from quire.core.structured_outputs import StructuredOutputs
    from quire.llm import LLM, AsyncLLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

_HOMES = {
    "LLM": "quire.llm",
    "AsyncLLM": "quire.llm",
    "RequestOutputKind": "quire.core.sampling_params",
    "SamplingParams": "quire.core.sampling_params",
    "StructuredOutputs": "quire.core.structured_outputs",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `quire --help` and the planner never pay for the engine's imports.
    if name not in _HOMES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

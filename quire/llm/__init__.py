"""LLM and AsyncLLM: where engine, runner and text are joined."""

from quire.llm.async_llm import AsyncLLM
from quire.llm.llm import LLM

__all__ = ["LLM", "AsyncLLM"]

"""Requests of an engine by text, for tests of what comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from quire.core.engine_request import EngineRequest
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import EngineClient


def ask(
    engine: EngineClient, text: str, params: SamplingParams, request_id: str, **attributes: Any
) -> AsyncGenerator[RequestOutput, None]:
    """Generate after ``text``; ``attributes`` are of ``EngineRequest``."""
    token_ids = engine.tokenizer.encode(text)
    return engine.generate(EngineRequest(request_id, token_ids, params, prompt=text, **attributes))

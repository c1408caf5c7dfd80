"""A beam search over an engine client: the steps of one request, one output at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.core.beam_search_params import BeamSearchParams
from quire.core.engine_request import EngineRequest
from quire.core.outputs import RequestOutput
from quire.llm.beams.beam_search import BeamSearch, width_errors
from quire.llm.engine_client import EngineClient


async def search_beams(
    engine: EngineClient, request: EngineRequest, params: BeamSearchParams
) -> AsyncGenerator[RequestOutput, None]:
    """Yield one finished output whose ``outputs`` are the best sequences, best first.

    Closing it early aborts what runs. Errors are those of :meth:`EngineClient.generate`.

    Args:
        engine: The engine that computes the steps.
        request: The prompt; of its settings, only ``skip_special_tokens`` and ``logprobs`` count.
        params: The settings of the search.
    """
    search = BeamSearch(request, params, frozenset(engine.model_config.eos_token_ids))
    last: RequestOutput | None = None
    try:
        while search.requests:
            with width_errors(params.beam_width, "n"):
                outputs = await _run(engine, search.requests)
            last = outputs[0]
            for output in outputs:
                if output.outputs[0].finish_reason in ("timeout", "abort", "error"):
                    yield _ended(request, output)
                    return
            search.advance(outputs)
    finally:
        for request_id in search.kept | {one.request_id for one in search.requests}:
            await engine.abort(request_id)
    assert last is not None, "a search has a step at least"
    yield search.request_output(engine.tokenizer, last)


async def _run(engine: EngineClient, requests: list[EngineRequest]) -> list[RequestOutput]:
    """Run a step's requests; when one fails, the others end, too."""
    tasks = [asyncio.create_task(_last(engine, request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _last(engine: EngineClient, request: EngineRequest) -> RequestOutput:
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            if output.finished:
                return output
    raise AssertionError(f"{request.request_id} has no end")


def _ended(request: EngineRequest, output: RequestOutput) -> RequestOutput:
    """Return the end of a search that could not continue."""
    output.request_id = request.request_id
    output.prompt_token_ids = request.prompt_token_ids
    (completion,) = output.outputs
    completion.token_ids, completion.logprobs = [], None
    return output

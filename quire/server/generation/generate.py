"""A checked request handed to the engine, and its outputs as they grow; not their wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

from quire.core.outputs import RequestOutput
from quire.llm.beams.beam_search_stream import search_beams
from quire.server.generation.service import Service
from quire.server.generation.submission import UNSTATED_OUTPUT, Submission
from quire.server.http.failures import failure_error
from quire.server.http.http_errors import ApiError
from quire.server.observability.request_observer import RequestObserver
from quire.server.observability.request_record import Generation

#: Prompts of a request whose outputs are read before others get their turn on the loop.
READ_AT_ONCE = 16
#: Prompts that are handed to the engine in one turn of the loop, of all requests with many: each
#: may take half a millisecond.
HANDED_IN_A_TURN = 4
#: Sequences that are handed to the engine, and seconds until further ones are. The engine takes
#: requests in the order in which they arrive, some microseconds a sequence, and those of others
#: wait until it has taken what came before.
HANDED_AT_ONCE, HANDING_SECONDS = 256, 0.005
#: Bytes of a request's settings that the engine reads while it takes a sequence.
BYTES_PER_SEQUENCE = 4096


async def generate(
    service: Service, submission: Submission
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield ``(prompt index, delta)`` whenever a prompt's output grew.

    Closing the generator aborts what still runs.

    Raises:
        ApiError: The queue is full or the key's limit is reached (429); the deadline passed before
            anything was produced (504); the engine gave up on the request (500); or the engine ends
            the request because it stops (503).
        RequestError: The grammar met a limit after some tokens, or the settings left none.
        QuireError: The same as in ``EngineClient.generate``.
    """
    submission.check(service)
    request, engine_requests = submission.request, submission.engine_requests
    sizes = [len(one.prompt_token_ids) for one in engine_requests]
    generations = [Generation(one.request_id, one.params) for one in engine_requests]
    observers = [RequestObserver(service.metrics, generation) for generation in generations]
    indices = {one.request_id: index for index, one in enumerate(engine_requests)}
    reserved = service.shared.rate_limits.reserve(
        request.api_key, sum(sizes), _num_reserved(submission, service.engine.max_model_len)
    )
    try:
        queued = service.admission.admit(sizes, request.client.client_id)
    except ApiError:
        reserved.settle(sum(sizes))
        raise
    service.metrics.num_in_flight += 1
    try:
        request.record.begin_generations(
            generations,
            model=request.model,
            api_key=None if request.api_key is None else request.client.client_id,
            streamed=request.stream,
        )
        if submission.beam_searches:
            pairs = zip(engine_requests, submission.beam_searches, strict=True)
            streams = [search_beams(service.engine, *pair) for pair in pairs]
        else:
            streams = [service.engine.generate(one) for one in engine_requests]
        weights = [
            one.params.n + one.params.num_bytes // BYTES_PER_SEQUENCE for one in engine_requests
        ]
        handing = service.shared.handing
        merged = streams[0] if len(streams) == 1 else _merged(streams, weights, handing)
        async with aclosing(merged) as outputs:
            async for output in outputs:
                index = indices[output.request_id]
                observers[index].observe(output)
                reserved.use(sum(len(one.token_ids) for one in output.outputs))
                queued[index].remove(served=True)
                _check(output, generations)
                yield index, output
    finally:
        service.metrics.num_in_flight -= 1
        for entry in queued:
            entry.remove(served=False)
        reserved.settle()


def _num_reserved(submission: Submission, longest: int) -> int:
    """Return how many output tokens a request is reckoned to take before it has any."""
    found = 0
    for request in submission.engine_requests:
        params = request.params
        if params.pooling is None:
            room = max(1, longest - len(request.prompt_token_ids))
            most = min(room, UNSTATED_OUTPUT) if params.max_tokens is None else params.max_tokens
            found += params.n * most
    return found


def _check(output: RequestOutput, generations: list[Generation]) -> None:
    """Refuse an output that is not an answer."""
    for completion in output.outputs:
        if completion.finish_reason == "error":
            assert output.failure is not None, f"{output.request_id} has no failure"
            raise failure_error(output.failure)
        if completion.finish_reason == "abort":
            raise ApiError(503, "The server is shutting down; this request was ended.")
    only = generations[0] if len(generations) == 1 and output.finished else None
    if only is not None and not only.num_output_tokens and "timeout" in only.finish_reasons:
        raise ApiError(504, "The request's timeout passed before its first token.")


async def _merged(
    streams: list[AsyncGenerator[RequestOutput, None]], weights: list[int], handing: asyncio.Lock
) -> AsyncGenerator[RequestOutput, None]:
    """Yield from all streams as they grow; a slow reader gets what each has grown by, at once.

    Args:
        streams: Streams of outputs; each sends its request to the engine on the first read.
        weights: Sequences of each request, or as many as cost the engine the same.
        handing: The lock that is held while some are handed over.
    """
    unread: dict[int, RequestOutput] = {}
    changed = asyncio.Event()

    async def follow(index: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        async with aclosing(stream):
            async for output in stream:
                if index in unread:
                    unread[index].merge(output)
                else:
                    unread[index] = output
                changed.set()

    async def follow_all() -> None:
        for turn, pause in _turns(weights):
            async with handing:
                for i in turn:
                    start(follow(i, streams[i]))
                await asyncio.sleep(pause)

    def start(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.create_task(work))
        tasks[-1].add_done_callback(lambda _: changed.set())

    tasks: list[asyncio.Task[None]] = []
    start(follow_all())
    try:
        while True:
            await changed.wait()
            changed.clear()
            ended = [task.done() for task in tasks]
            for count, index in enumerate(sorted(unread), start=1):
                yield unread.pop(index)
                if count % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
            for task in tasks:
                if task.done():
                    task.result()
            if all(ended):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _turns(weights: list[int]) -> Iterator[tuple[range, float]]:
    """Yield which streams begin in one turn of the loop, and the seconds until the next."""
    first, handed = 0, 0
    for i, weight in enumerate(weights):
        handed += weight
        if handed >= HANDED_AT_ONCE or i + 1 - first == HANDED_IN_A_TURN:
            yield range(first, i + 1), HANDING_SECONDS if handed >= HANDED_AT_ONCE else 0.0
            first, handed = i + 1, 0 if handed >= HANDED_AT_ONCE else handed
    if first < len(weights):
        yield range(first, len(weights)), 0.0

"""From a checked request to the engine's outputs; not their format on the wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from quire.core.client import SHARED
from quire.core.errors import KV_CANARY, PromptTooLongError, RequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.server.access.authentication import ApiKey
from quire.server.generation.service import Service
from quire.server.http.errors import ApiError
from quire.server.observability.request_observer import RequestObserver
from quire.server.observability.request_record import Generation, RequestRecord

#: ``(prompt index, output so far)`` of a request's prompts, as they grow.
Outputs: TypeAlias = AsyncGenerator[tuple[int, RequestOutput], None]

_submissions = itertools.count()


@dataclass(slots=True, kw_only=True)
class Submission:
    """What an endpoint asks of the engine.

    Attributes:
        response_id: Id of the answer; the engine's ids derive from it.
        prompts: Token ids of each prompt.
        params: Sampling settings of each prompt.
        param: Request field that holds the prompt, for errors.
        priority: Lower runs first.
        deadline: When it ends with ``timeout``, on the monotonic clock.
        cache_salt: Only requests with the same salt share cached blocks.
        api_key: Whose request it is, where keys are asked for.
        record: Gets what becomes of each prompt.
    """

    response_id: str
    prompts: list[list[int]]
    params: list[SamplingParams]
    param: str
    priority: int = 0
    cache_salt: str | None = None
    deadline: float | None = None
    record: RequestRecord | None = None
    api_key: ApiKey | None = None


def output_limit(service: Service, asked: int | None, num_prompt_tokens: int) -> int | None:
    """Return the request's limit of output tokens, else the model's own as far as it fits."""
    default: int | None = service.engine.default_sampling_params.get("max_tokens")
    if asked is not None or default is None:
        return asked
    return min(default, max(1, service.engine.max_model_len - num_prompt_tokens))


def check_submission(service: Service, submission: Submission) -> None:
    """Refuse what would be ignored or only be found once other prompts of the request run.

    Raises:
        PromptTooLongError: With the counts, in the words that clients look for.
        RequestError: A setting that this server does not honour.
    """
    if submission.priority and service.config.scheduler.scheduling_policy != "priority":
        raise RequestError(
            "[priority] needs a server started with --scheduling-policy priority; "
            f"got {submission.priority}.",
            "priority",
        )
    limit, param = service.engine.max_model_len, submission.param
    for token_ids, params in zip(submission.prompts, submission.params, strict=True):
        asked = 0 if params.pooling is not None else params.max_tokens or 1
        if len(token_ids) + asked > limit:
            raise PromptTooLongError(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{len(token_ids) + asked} tokens ({len(token_ids)} in the {param}, {asked} in "
                f"the completion). Please reduce the length of the {param} or completion.",
                param,
            )


async def generate(
    service: Service, submission: Submission
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield ``(prompt index, output so far)`` whenever a prompt's output grew.

    Closing it aborts what still runs.

    Raises:
        ApiError: The queue is full or the key's limit reached (429), the deadline passed before
            anything was produced (504), the engine gave up on the request (500), or ends it because
            it stops (503).
        QuireError: What ``EngineClient.generate`` raises.
    """
    number = next(_submissions)
    metrics, key = service.metrics, submission.api_key
    if key is not None:
        service.rate_limits.admit(key, sum(map(len, submission.prompts)))
    places = service.admission.admit([len(prompt) for prompt in submission.prompts])
    metrics.num_in_flight += 1
    try:
        streams = [
            _observed(service, submission, index, f"{submission.response_id}-{number}-{index}")
            for index in range(len(submission.prompts))
        ]
        outputs = _single(streams[0]) if len(streams) == 1 else _merged(streams)
        async with aclosing(outputs):
            async for index, output in outputs:
                places[index].leave(served=True)
                yield index, _checked(output, alone=len(streams) == 1)
    finally:
        metrics.num_in_flight -= 1
        for place in places:
            place.leave(served=False)


async def _single(
    stream: AsyncGenerator[RequestOutput, None],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    async with aclosing(stream):
        async for output in stream:
            yield 0, output


async def _observed(
    service: Service, submission: Submission, index: int, request_id: str
) -> AsyncGenerator[RequestOutput, None]:
    """Pass one prompt's outputs on and write their times and counts to the metrics."""
    params = submission.params[index]
    outputs = service.engine.generate(
        {"prompt_token_ids": submission.prompts[index]},
        params,
        request_id,
        priority=submission.priority,
        cache_salt=submission.cache_salt,
        deadline=submission.deadline,
        client=SHARED if submission.api_key is None else submission.api_key.client,
    )
    generation = Generation(request_id, params)
    if submission.record is not None:
        submission.record.generations.append(generation)
    observer = RequestObserver(service.metrics, generation)
    try:
        async with aclosing(outputs):
            async for output in outputs:
                observer.observe(output)
                yield output
    finally:
        if submission.api_key is not None:
            service.rate_limits.add_output(submission.api_key, generation.num_output_tokens)


def _checked(output: RequestOutput, alone: bool) -> RequestOutput:
    for completion in output.outputs:
        if completion.finish_reason == "error":
            corrupted = (output.error or "").startswith(KV_CANARY)
            raise ApiError(
                500,
                f"The engine failed on this request: {output.error}",
                type="KVCacheCorruptedError" if corrupted else None,
            )
        if completion.finish_reason == "abort":
            raise ApiError(503, "The server is shutting down; this request was ended.")
    produced = any(completion.token_ids for completion in output.outputs)
    if alone and output.finished and not produced:
        expired = [c for c in output.outputs if c.finish_reason == "timeout"]
        if expired:
            raise ApiError(504, "The request's timeout passed before its first token.")
    return output


async def _merged(
    streams: list[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield from all streams as they grow; a slow reader gets the latest state of each."""
    latest: dict[int, RequestOutput] = {}
    changed = asyncio.Event()

    async def follow(index: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        async with aclosing(stream):
            async for output in stream:
                latest[index] = output
                changed.set()

    tasks = [asyncio.create_task(follow(i, stream)) for i, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(lambda _: changed.set())
    try:
        while True:
            await changed.wait()
            changed.clear()
            ended = [task.done() for task in tasks]
            for index in sorted(latest):
                yield index, latest.pop(index)
            for task in tasks:
                if task.done():
                    task.result()
            if all(ended):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""``POST /v1/embeddings``: prompts through the engine, without sampling."""

from __future__ import annotations

import time
from array import array
from base64 import b64encode
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.protocol.embedding import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)
from quire.protocol.prompt_list import read_prompts
from quire.server.generation.generate import Submission, check_submission, generate
from quire.server.generation.prompts import PromptLimit, encode_text
from quire.server.generation.service import Service
from quire.server.http.body import read_request, read_timeout
from quire.server.http.connection import run_until_disconnect
from quire.server.http.errors import ApiError, name_field


class Embeddings:
    """The ASGI app of the route."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away ends it."""
        arrival = time.monotonic()
        request = Request(scope, receive)
        strict = self._service.options.strict_params
        body, headers = await read_request(request, EmbeddingRequest, strict)
        timeout = body.timeout or read_timeout(request)

        async def work() -> None:
            submission = await self._submission(scope, body)
            if timeout is not None:
                submission.deadline = arrival + timeout
            check_submission(self._service, submission)
            outputs = await self._collect(submission)
            answer = self._answer(submission, body, outputs)
            content = msgspec.json.encode(answer)
            response = Response(content, headers=headers, media_type="application/json")
            await response(scope, receive, send)

        await run_until_disconnect(receive, work())

    async def _submission(self, scope: Scope, body: EmbeddingRequest) -> Submission:
        service = self._service
        record, key = scope["record"], scope.get("api_key")
        record.model = service.resolve_model(body.model)
        record.api_key = None if key is None else key.client.client_id
        size = service.engine.model_config.hidden_size
        if body.dimensions not in (None, size):
            raise RequestError(
                f"[dimensions] must be the model's own ({size}), whose vectors cannot be "
                f"shortened; got {body.dimensions}.",
                "dimensions",
            )
        special = body.add_special_tokens is not False
        limit = PromptLimit(service.engine.max_model_len, "input")
        prompts = [
            await encode_text(service.engine.tokenizer, item, special, limit)
            if isinstance(item, str)
            else item
            for item in read_prompts(body.input, "input")
        ]
        params = SamplingParams(pooling=service.options.pooling, max_tokens=None, detokenize=False)
        return Submission(
            response_id=f"embd-{body.request_id or scope['request_id']}",
            prompts=prompts,
            params=[params] * len(prompts),
            param="input",
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            record=record,
            api_key=key,
        )

    async def _collect(self, submission: Submission) -> list[RequestOutput]:
        found: dict[int, RequestOutput] = {}
        try:
            async with aclosing(generate(self._service, submission)) as outputs:
                async for index, output in outputs:
                    found[index] = output
                    if output.finished and output.embedding is None:
                        raise ApiError(504, "The request's timeout passed before its end.")
        except RequestError as error:
            name_field(error, "prompt", submission.param)
            raise
        return [found[index] for index in range(len(submission.prompts))]

    def _answer(
        self, submission: Submission, body: EmbeddingRequest, outputs: list[RequestOutput]
    ) -> EmbeddingResponse:
        base64 = body.encoding_format == "base64"
        num_tokens = sum(len(prompt) for prompt in submission.prompts)
        assert submission.record is not None and submission.record.model is not None
        return EmbeddingResponse(
            id=submission.response_id,
            created=int(time.time()),
            model=submission.record.model,
            data=[
                Embedding(index=index, embedding=_encode(output.embedding or b"", base64))
                for index, output in enumerate(outputs)
            ],
            usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )


def _encode(embedding: bytes, base64: bool) -> list[float] | str:
    if base64:
        return b64encode(embedding).decode()
    return array("f", embedding).tolist()

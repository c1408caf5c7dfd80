"""``POST /pooling``: vectors, or probabilities of classes, by the request's task."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import replace

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.protocol.openai.embedding import EmbeddingRequest
from quire.protocol.openai.pooling import Pooled, PoolingRequest, PoolingResponse
from quire.server.generation.endpoint import GenerationEndpoint, WholeAnswer
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.errors import ApiError
from quire.server.openai.embeddings import Embeddings, encoded, prompt_usage


class Pooling(GenerationEndpoint[PoolingRequest]):
    """The ASGI app of the route."""

    kind = PoolingRequest
    id_prefix = "pool"

    async def prepare(
        self, request: ApiRequest[PoolingRequest]
    ) -> tuple[PoolingAnswer, Submission]:
        scoring, task = self.service.scoring, request.body.task
        if task == "classify" and scoring.classifier is None:
            raise RequestError(
                "[task] classify needs a model with a head of classes; got "
                f"{self.service.engine.model_config.architecture}. Take embed.",
                "task",
            )
        body: EmbeddingRequest = request.body
        _, submission = await Embeddings(self.service).prepare(request.with_body(body))
        if task == "embed" or scoring.classifier is None:
            return PoolingAnswer(request, lambda one: one.embedding or b""), submission
        params = scoring.params()
        asked = [replace(one, params=params) for one in submission.engine_requests]

        def read(output: RequestOutput) -> bytes:
            return array("f", scoring.probabilities(output)).tobytes()

        return PoolingAnswer(request, read), replace(submission, engine_requests=asked)


class PoolingAnswer(WholeAnswer):
    """Formats one answer.

    Args:
        request: The request that is answered.
        read: The function that returns the float32 values of an output.
    """

    def __init__(
        self, request: ApiRequest[PoolingRequest], read: Callable[[RequestOutput], bytes]
    ) -> None:
        self._request, self._read = request, read

    def whole(self, outputs: list[RequestOutput]) -> PoolingResponse:
        """Return the whole answer."""
        if any(output.embedding is None for output in outputs):
            raise ApiError(504, "The request's timeout passed before its end.")
        encoding = self._request.body.encoding_format
        return PoolingResponse(
            id=self._request.response_id,
            created=int(time.time()),
            model=self._request.model,
            data=[
                Pooled(index=index, data=encoded(self._read(output), encoding))
                for index, output in enumerate(outputs)
            ],
            usage=prompt_usage(outputs),
        )

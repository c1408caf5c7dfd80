"""``POST /pooling``: vectors, or probabilities of classes, by the request's task."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.protocol.openai.embedding import EmbeddingRequest
from quire.protocol.openai.pooling import Pooled, PoolingRequest, PoolingResponse
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.scoring_methods import Scoring
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.openai.embeddings import Embeddings, PooledAnswer, encoded, prompt_usage


class Pooling(GenerationEndpoint[PoolingRequest]):
    """The ASGI app of the route."""

    kind = PoolingRequest
    id_prefix = "pool"

    async def prepare(self, request: ApiRequest[PoolingRequest]) -> tuple[PooledAnswer, Submission]:
        scoring, task = self.service.scoring, request.body.task
        if task == "classify" and scoring.classifier is None:
            raise RequestError(
                "[task] classify needs a model with a head of classes; got "
                f"{self.service.engine.model_config.architecture}. Take embed.",
                "task",
            )
        body: EmbeddingRequest = request.body
        _, submission = await Embeddings(self.service).prepare(request.with_body(body))
        read: Callable[[RequestOutput], bytes] = _vector
        if task != "embed" and scoring.classifier is not None:
            read, params = partial(_probabilities, scoring), scoring.params()
            asked = [replace(one, params=params) for one in submission.engine_requests]
            submission = replace(submission, engine_requests=asked)

        encoding = request.body.encoding_format

        def write(outputs: list[RequestOutput]) -> PoolingResponse:
            return PoolingResponse(
                id=request.response_id,
                created=int(time.time()),
                model=request.model,
                data=[
                    Pooled(index=i, data=encoded(read(output), encoding))
                    for i, output in enumerate(outputs)
                ],
                usage=prompt_usage(outputs),
            )

        return PooledAnswer(write), submission


def _vector(output: RequestOutput) -> bytes:
    return output.embedding or b""


def _probabilities(scoring: Scoring, output: RequestOutput) -> bytes:
    return array("f", scoring.probabilities(output)).tobytes()

"""``POST /v1/embeddings``: prompts through the engine, without sampling."""

from __future__ import annotations

import time
from array import array
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.protocol.openai.embedding import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)
from quire.protocol.prompt_list import read_prompts
from quire.server.generation.endpoint import GenerationEndpoint, WholeAnswer
from quire.server.generation.prompts.tokenized_prompts import PromptLimit, encode_texts
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.http_errors import ApiError


class Embeddings(GenerationEndpoint[EmbeddingRequest]):
    """The ASGI app of the route."""

    kind = EmbeddingRequest
    id_prefix = "embd"

    async def prepare(
        self, request: ApiRequest[EmbeddingRequest]
    ) -> tuple[PooledAnswer, Submission]:
        service, body = self.service, request.body
        size = service.engine.model_config.hidden_size
        if body.dimensions not in (None, size):
            raise RequestError(
                f"[dimensions] must be the model's own ({size}), whose vectors cannot be "
                f"shortened; got {body.dimensions}.",
                "dimensions",
            )
        normalize = service.engine.model_config.pooling.normalize
        for name in ("normalize", "use_activation"):
            if getattr(body, name) not in (None, normalize):
                raise RequestError(
                    f"[{name}] must be the checkpoint's own ({str(normalize).lower()}), or absent.",
                    name,
                )
        special = body.add_special_tokens is not False
        limit = PromptLimit(service.engine.max_model_len, "input")
        given = read_prompts(body.input, "input")
        texts = [item for item in given if isinstance(item, str)]
        prompts = [item for item in given if not isinstance(item, str)]  # all are of one kind
        if texts:
            tokenizer, client_id = service.engine.tokenizer, request.client.client_id
            prompts = await encode_texts(tokenizer, texts, special, limit, client_id)
        params = service.vector_params
        submission = Submission.create(request, "input", [(prompt, params) for prompt in prompts])

        encoding = request.body.encoding_format

        def write(outputs: list[RequestOutput]) -> EmbeddingResponse:
            return EmbeddingResponse(
                id=request.response_id,
                created=int(time.time()),
                model=request.model,
                data=[
                    Embedding(index=i, embedding=encoded(output.embedding or b"", encoding))
                    for i, output in enumerate(outputs)
                ],
                usage=prompt_usage(outputs),
            )

        return PooledAnswer(write), submission


class PooledAnswer(WholeAnswer):
    """An answer of vectors, scores or classes.

    Args:
        write: The function that makes the answer from all outputs.
    """

    def __init__(self, write: Callable[[list[RequestOutput]], Any]) -> None:
        self._write = write

    def whole(self, outputs: list[RequestOutput]) -> Any:
        """Return the whole answer."""
        if any(output.embedding is None and not output.outputs for output in outputs) or any(
            one.finish_reason == "timeout" for output in outputs for one in output.outputs
        ):
            raise ApiError(504, "The request's timeout passed before its end.")
        return self._write(outputs)


def encoded(values: bytes, encoding: str | None) -> Any:
    """Return float32 values in a request's ``encoding_format``, for JSON.

    Lists are written one by one: those of a thousand prompts at once would hold the interpreter.
    """
    if encoding == "base64":
        return b64encode(values).decode()
    return msgspec.Raw(msgspec.json.encode(array("f", values).tolist()))


def prompt_usage(outputs: Sequence[RequestOutput]) -> EmbeddingUsage:
    """Return the usage of an answer without output tokens."""
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)

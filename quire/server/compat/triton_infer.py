"""``POST /v2/models/{model}/infer``: a completion as tensors, for ``tritonclient``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.protocol.decimal_text import read_decimal
from quire.protocol.decode import decode_json
from quire.protocol.triton.triton_tensors import TEXT_OUTPUT, InferRequest, fill_inputs, write_texts
from quire.server.generation.endpoint import GenerationEndpoint, WholeAnswer
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import (
    Fields,
    JsonRequest,
    check_media_type,
    decode_in_turn,
    read_body,
)

#: Models have one version here.
VERSION = "1"
HEADER_LENGTH = "inference-header-content-length"


async def read_tensors(scope: Scope, receive: Receive, send: Send) -> JsonRequest:
    """Read a request whose tensors may stand after the JSON."""
    http = Request(scope, receive)
    check_media_type(http, any_type=True)
    content, length = await read_body(http), http.headers.get(HEADER_LENGTH)
    size = len(content) if length is None else _size(length, len(content))

    def decode(content: bytes) -> Fields:
        return fill_inputs(decode_json(content[:size]), content[size:])

    return JsonRequest(http, send, await decode_in_turn(scope, content, decode))


class Infer(GenerationEndpoint[InferRequest]):
    """The ASGI app of the route."""

    kind = InferRequest
    id_prefix = "triton"
    read = staticmethod(read_tensors)

    def resolve(self, body: InferRequest, path_params: Mapping[str, Any]) -> InferRequest:
        return msgspec.structs.replace(body, model=path_params["model"])

    def unused_fields(self, body: InferRequest) -> list[str]:
        return body.unknown_parameters()

    async def prepare(self, request: ApiRequest[InferRequest]) -> tuple[InferTexts, Submission]:
        completion = request.with_body(request.body.completion_request())
        submission, prompts = await prepare_completion(self.service, completion, "text_input")
        return InferTexts(request, prompts), submission


def _size(text: str, most: int) -> int:
    size = read_decimal(text, most)
    if size is None:
        raise RequestError(
            f"[{HEADER_LENGTH}] must be at most the body's {most} bytes; got {text[:40]!a}."
        )
    return size


class InferTexts(WholeAnswer):
    """Formats one answer.

    Args:
        request: The request that is answered.
        prompts: The texts that were sent.
    """

    def __init__(self, request: ApiRequest[InferRequest], prompts: list[str]) -> None:
        body = request.body
        self._body = body
        self._model = request.model
        echo = body.given().exclude_input_in_output is False
        self._prompts = prompts if echo else [""] * len(prompts)

    def whole(self, outputs: list[RequestOutput]) -> Any:
        """Return the whole answer, a response of its own where its texts are bytes."""
        texts = [
            prompt + output.outputs[0].text
            for prompt, output in zip(self._prompts, outputs, strict=True)
        ]
        tensor: dict[str, Any] = {
            "name": TEXT_OUTPUT,
            "datatype": "BYTES",
            "shape": self._body.text_shape(),
        }
        answer: dict[str, Any] = {
            "model_name": self._model,
            "model_version": VERSION,
            "outputs": [tensor],
        }
        if self._body.id is not None:
            answer["id"] = self._body.id
        if not self._body.wants_bytes:
            tensor["data"] = texts
            return answer
        data = write_texts(texts)
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = msgspec.json.encode(answer)
        headers = {HEADER_LENGTH: str(len(head))}
        return Response(head + data, headers=headers, media_type="application/octet-stream")

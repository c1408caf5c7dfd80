"""``POST /v2/models/{model}/generate`` and ``.../generate_stream``: Triton's generate extension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.routing import Route

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.triton import TritonAnswer, TritonRequest
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.generation.completion_prompt import prepare_completion
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.sse import PLAIN_EVENTS

PREFIX = "/v2/models/"
#: Models have one version here.
VERSION = "1"


class Triton(CompatEndpoint[TritonRequest]):
    """The ASGI app of either route."""

    kind = TritonRequest
    id_prefix = "triton"
    form = PLAIN_EVENTS

    def resolve(self, body: TritonRequest, path_params: Mapping[str, Any]) -> TritonRequest:
        body = super().resolve(body, path_params)
        return msgspec.structs.replace(body, model=path_params["model"])

    async def prepare(self, request: ApiRequest[TritonRequest]) -> tuple[TritonTexts, Submission]:
        body = request.body
        completion = request.with_body(body.completion_request())
        submission, (text,) = await prepare_completion(self.service, completion, "text_input")
        echo = text if body.given().exclude_input_in_output is False else ""
        return TritonTexts(request.model, body.id, echo), submission


class TritonTexts(CompatAnswer):
    """Formats one answer.

    Args:
        model: The served name.
        request_id: The client's own, sent back.
        echo: Stands before the text.
    """

    form = PLAIN_EVENTS

    def __init__(self, model: str, request_id: str | None, echo: str) -> None:
        self._model = model
        self._request_id = request_id
        self._echo = echo

    def whole(self, outputs: list[RequestOutput]) -> TritonAnswer:
        return self._answer(outputs[0].outputs[0].text)

    def pieces(self, output: RequestOutput, completion: CompletionOutput) -> Iterator[TritonAnswer]:
        if completion.text or (self._echo and output.finished):
            yield self._answer(completion.text)
            self._echo = ""

    def _answer(self, text: str) -> TritonAnswer:
        return TritonAnswer(
            id=self._request_id,
            model_name=self._model,
            model_version=VERSION,
            text_output=self._echo + text,
        )


def routes(service: Service) -> list[Route]:
    """Return the routes."""
    whole, streamed = Triton(service, False), Triton(service, True)
    return [
        Route(PREFIX + "{model:path}/generate", whole, methods=["POST"]),
        Route(PREFIX + "{model:path}/generate_stream", streamed, methods=["POST"]),
    ]

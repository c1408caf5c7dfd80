"""Triton's routes: ``.../generate``, ``.../generate_stream``, ``.../infer``, and about a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.core.outputs import CompletionOutput, RequestOutput
from quire.protocol.triton.triton import TritonAnswer, TritonRequest
from quire.protocol.triton.triton_tensors import INPUTS, TEXT_INPUT, TEXT_OUTPUT
from quire.server.compat.base import CompatAnswer, CompatEndpoint
from quire.server.compat.triton_infer import VERSION, Infer
from quire.server.generation.model_routes import ByModel
from quire.server.generation.prompts.completion_prompt import prepare_completion
from quire.server.generation.served_models import Models, find_known
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import json_response
from quire.server.http.http_errors import ApiError
from quire.server.http.sse import PLAIN_EVENTS

PREFIX = "/v2/models/"
PLATFORM = "quire"


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
        request_id: The client's own id, sent back.
        echo: The text before the answer.
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


def routes(models: Models) -> list[Route]:
    """Return the routes; a model's name may hold slashes, and its one version may be named."""

    async def show_server(request: Request) -> Response:
        extensions = ["generate", "binary_tensor_data", "model_configuration"]
        return json_response(
            {"name": PLATFORM, "version": quire.__version__, "extensions": extensions}
        )

    async def ready(request: Request) -> Response:
        model, name = find_known(models, request.path_params["model"])
        if model.service is None:  # requests for answers load it, this one does not
            raise ApiError(503, f"The model {name} is not loaded.")
        model.service.check_serving()
        return Response()

    async def show(request: Request) -> Response:
        _, name = find_known(models, request.path_params["model"])
        return json_response(_metadata(name))

    async def show_config(request: Request) -> Response:
        _, name = find_known(models, request.path_params["model"])
        return json_response(_config(name, models.shared.options.decoupled))

    whole, streamed = ByModel(models, Triton, False), ByModel(models, Triton, True)
    infer = ByModel(models, Infer)
    found = [Route("/v2", show_server, methods=["GET"])]
    for model in (f"{PREFIX}{{model:path}}/versions/{VERSION}", f"{PREFIX}{{model:path}}"):
        found += [
            Route(f"{model}/generate", whole, methods=["POST"]),
            Route(f"{model}/generate_stream", streamed, methods=["POST"]),
            Route(f"{model}/infer", infer, methods=["POST"]),
            Route(f"{model}/ready", ready, methods=["GET"]),
            Route(f"{model}/config", show_config, methods=["GET"]),
        ]
    for model in (f"{PREFIX}{{model:path}}/versions/{VERSION}", f"{PREFIX}{{model:path}}"):
        found.append(Route(model, show, methods=["GET"]))
    return found


def _metadata(name: str) -> dict[str, Any]:
    """Return what ``.../infer`` takes and gives."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [
            {"name": tensor, "datatype": kind, "shape": [_length(tensor)]}
            for tensor, kind in INPUTS
        ],
        "outputs": [{"name": TEXT_OUTPUT, "datatype": "BYTES", "shape": [-1]}],
    }


def _config(name: str, decoupled: bool) -> dict[str, Any]:
    """Return the same in the words of a model's configuration file."""
    inputs = [
        {
            "name": tensor,
            "data_type": _data_type(kind),
            "dims": [_length(tensor)],
            "optional": tensor != TEXT_INPUT,
        }
        for tensor, kind in INPUTS
    ]
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": [{"name": TEXT_OUTPUT, "data_type": _data_type("BYTES"), "dims": [-1]}],
        "model_transaction_policy": {"decoupled": decoupled},
    }


def _length(tensor: str) -> int:
    """Return how many elements an input has; -1 leaves it open."""
    return -1 if tensor in (TEXT_INPUT, "stop") else 1


def _data_type(kind: str) -> str:
    return "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"

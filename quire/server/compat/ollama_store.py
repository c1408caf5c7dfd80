"""Ollama's routes that change what models there are: pull, create, copy, delete; push cannot be."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.protocol.ollama.ollama_store import (
    OllamaCopyRequest,
    OllamaCreateRequest,
    OllamaPullRequest,
)
from quire.server.compat import ollama_blobs
from quire.server.compat.ollama_blobs import in_thread
from quire.server.generation.served_models import ManagedModels
from quire.server.http.body import json_response, read_fields, read_json
from quire.server.http.http_errors import ApiError
from quire.server.http.sse import LINES
from quire.server.operations.pulls import PullRoute
from quire.store.manifests import Preset, canonical_name, check_messages, check_sampling
from quire.store.store import Store
from quire.text.templates.chat_template import check_template


def routes(models: ManagedModels) -> list[Route]:
    """Return the routes."""
    store, strict = Store(), models.shared.options.strict_params

    async def create(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        body, headers = read_fields(fields, OllamaCreateRequest, strict)
        name, base = body.meant, body.from_
        if bool(base) == bool(body.files):
            rule = "[from] must name a model to start from, or files what was uploaded; got both."
            nothing = "neither 'from' or 'files' was specified"
            raise RequestError(rule if base else nothing, "from")
        preset = await in_thread(lambda: _preset(body))
        if base:
            await _check_known(store, base)
            await in_thread(lambda: store.create(name, base, preset))
        else:
            await in_thread(lambda: store.create_from_files(name, body.files, preset))
        await models.forget(name)
        if body.stream is False:
            return json_response({"status": "success"}, headers)
        lines = ["parsing GGUF", "writing manifest"] if body.files else ["writing manifest"]
        steps = (LINES.event(msgspec.json.encode({"status": s})) for s in (*lines, "success"))
        return Response(b"".join(steps), headers=headers, media_type=LINES.media_type)

    async def push(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        body, _ = read_fields(fields, OllamaPullRequest, strict)
        await _check_known(store, body.meant)
        raise ApiError(
            501,
            f"[push] {body.meant:.200} stays on this machine: Quire publishes to no registry. "
            "Upload its files to a hub with the hub's own tools.",
        )

    async def copy(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        body, headers = read_fields(fields, OllamaCopyRequest, strict)
        await _check_known(store, body.source)
        await in_thread(lambda: store.copy(body.source, body.destination))
        await models.forget(body.destination)
        return Response(headers=headers)

    async def delete(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        body, headers = read_fields(fields, OllamaPullRequest, strict)
        name = body.meant
        await _check_known(store, name)
        await models.forget(name)
        await in_thread(lambda: store.remove(name))
        return Response(headers=headers)

    return [
        Route("/api/pull", PullRoute(models.shared.pulls.steps, strict), methods=["POST"]),
        Route("/api/create", create, methods=["POST"]),
        Route("/api/copy", copy, methods=["POST"]),
        Route("/api/delete", delete, methods=["DELETE"]),
        Route("/api/push", push, methods=["POST"]),
        *ollama_blobs.routes(store),
    ]


def _preset(body: OllamaCreateRequest) -> Preset:
    if body.template:
        check_template(body.template)
    sampling = check_sampling(body.sampling(), "parameters")
    messages = check_messages(body.messages, "messages")
    return Preset(body.system, body.template or None, sampling, messages)


async def _check_known(store: Store, name: str) -> None:
    """Refuse a name that is not in the store; paths of this machine are no names here."""
    if canonical_name(name) is None or await in_thread(lambda: store.find(name)) is None:
        raise ApiError(404, f"model '{name:.200}' not found", param="model")

"""Ollama's routes that change what models there are: pull, create, copy, delete; push cannot be."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quire.core.errors import RequestError
from quire.models.manifests import Preset, canonical_name, check_messages, check_sampling
from quire.models.store import Store
from quire.protocol.ollama_store import (
    OllamaCopyRequest,
    OllamaCreateRequest,
    OllamaPullRequest,
)
from quire.server.compat import ollama_blobs
from quire.server.compat.ollama_blobs import in_thread
from quire.server.generation.models import ManagedModels
from quire.server.generation.pulls import Pulls
from quire.server.http.body import json_response, read_any_type, read_fields, read_json
from quire.server.http.connection import cancel_on_disconnect
from quire.server.http.errors import ApiError
from quire.server.http.sse import LINES, send_events
from quire.text.chat_template import check_template


class PullRoute:
    """The ASGI app of ``POST /api/pull``.

    Args:
        pulls: Of the server.
        strict: Refuse fields that do nothing.
    """

    def __init__(self, pulls: Pulls, strict: bool) -> None:
        self._pulls = pulls
        self._strict = strict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the steps as lines, or with the last one."""
        received = await read_any_type(scope, receive, send)
        body, headers = read_fields(received.fields, OllamaPullRequest, self._strict)
        name = _pullable(body.meant)
        async with cancel_on_disconnect(received.http.receive):
            if body.stream is not False:
                await send_events(send, self._lines(name), headers, 0, LINES)
                return
            async with aclosing(self._pulls.steps(name)) as steps:
                async for _ in steps:
                    pass
            await received.answer(json_response({"status": "success"}, headers))

    async def _lines(self, name: str) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._pulls.steps(name)) as steps:
            async for step in steps:
                told = asdict(step).items()
                line = {name: value for name, value in told if value}
                yield LINES.event(msgspec.json.encode(line))


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
        Route("/api/pull", PullRoute(models.shared.pulls, strict), methods=["POST"]),
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


def _pullable(name: str) -> str:
    """Return a name that may be pulled: none of a folder or file of this machine."""
    plain = canonical_name(name)
    if plain is None:
        raise ApiError(400, "invalid model name", param="model")
    return plain


async def _check_known(store: Store, name: str) -> None:
    """Refuse a name that is not in the store; paths of this machine are no names here."""
    if canonical_name(name) is None or await in_thread(lambda: store.find(name)) is None:
        raise ApiError(404, f"model '{name:.200}' not found", param="model")

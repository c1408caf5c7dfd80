"""``GET /models``, ``POST /models/load`` and ``/unload``, as in llama-server's router; pulls."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.llm.engine_client import EngineClient
from quire.llm.engine_views import actual_engine
from quire.server.generation.model_facts import ModelFacts, list_facts, weight_bytes
from quire.server.generation.pulls import Pulls
from quire.server.generation.served_models import KnownModel, ManagedModels
from quire.server.http.body import json_response, read_fields, read_json
from quire.server.operations import pulls as pull_operations
from quire.store.pull_progress import PullProgress


class ModelRequest(msgspec.Struct, kw_only=True):
    """The body of both POST routes."""

    model: str


def routes(models: ManagedModels) -> list[Route]:
    """Return the routes."""
    pulls, strict = models.shared.pulls, models.shared.options.strict_params

    async def list_models(request: Request) -> Response:
        found = await list_facts(models)
        first: dict[EngineClient, str] = {}  # of each engine, the model that is listed first
        described = [_describe(facts, first) for facts in found]
        names = {name for facts in found for name in facts.model.names}
        coming = pulls.running().items()
        described += [_describe_pull(pulls, *pull) for pull in coming if pull[0] not in names]
        return json_response({"object": "list", "data": described})

    async def load_model(request: Request) -> Response:
        body, headers = await _read(request)
        started = await models.load(body.model)
        return json_response({"success": True, "started": started}, headers)

    async def unload_model(request: Request) -> Response:
        body, headers = await _read(request)
        held = await models.unload(body.model)
        return json_response({"success": True, "was_loaded": held}, headers)

    async def _read(request: Request) -> tuple[ModelRequest, dict[str, str]]:
        return read_fields(await read_json(request), ModelRequest, strict)

    return [
        Route("/models", list_models, methods=["GET"]),
        Route("/models/load", load_model, methods=["POST"]),
        Route("/models/unload", unload_model, methods=["POST"]),
        *pull_operations.routes(pulls, strict),
    ]


def _describe(facts: ModelFacts, first: dict[EngineClient, str]) -> dict[str, Any]:
    model = facts.model
    described: dict[str, Any] = {
        "id": model.names[0],
        "aliases": list(model.names[1:]),
        "object": "model",
        "path": model.config.model.model,
        "created": facts.created,
        "capabilities": facts.capabilities,
        "max_model_len": facts.context,
        "max_tokens": facts.preset.sampling.get("max_tokens"),
        "bytes": facts.num_bytes,
        "status": _status(model),
    }
    service = model.service
    if service is not None:
        described["max_tokens"] = service.engine.default_sampling_params.get("max_tokens")
        same = first.setdefault(actual_engine(service.engine), model.names[0])
        described["meta"] = {
            "n_ctx": service.engine.max_model_len,
            "weight_bytes": weight_bytes(service),
            "shares_weights_of": None if same == model.names[0] else same,
            "requests": service.metrics.num_in_flight,
            "created": service.created,
        }
    return described


def _describe_pull(pulls: Pulls, name: str, step: PullProgress) -> dict[str, Any]:
    status = {
        "value": "downloading",
        "step": step.status,
        "downloaded_bytes": step.completed,  # of one file
        "total_bytes": step.total,
        "goes_on": pulls.goes_on(name),  # when no client watches
    }
    return {"id": name, "aliases": [], "object": "model", "status": status}


def _status(model: KnownModel) -> dict[str, Any]:
    status: dict[str, Any] = {"value": model.state, "waiting": model.num_waiting}
    loading = model.loading
    if loading is not None:
        status["loaded_bytes"] = loading.done_bytes
        status["total_bytes"] = loading.total_bytes  # 0 until the files are open
    if model.error:
        status["error"] = model.error
    return status

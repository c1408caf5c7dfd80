"""Ollama's routes about the model: ``/api/tags``, ``/api/show``, ``/api/ps``, ``/api/version``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.protocol.ollama import OllamaShowRequest
from quire.server.generation.by_model import Models, post_route
from quire.server.generation.service import Service
from quire.server.http.body import Fields, json_response, read_fields

_TAG = ":latest"
#: The model stays as long as the server.
_NEVER = "9999-12-31T23:59:59Z"
_WEIGHTS = 'memory_bytes{pool="weights"}'


def served_name(service: Service, name: str | None) -> str:
    """Return our name of a model: ``NAME:latest`` is ``NAME``."""
    name = name or ""
    return name if name in service.model_names else name.removesuffix(_TAG)


def stamp(seconds: float) -> str:
    """Return a time in unix seconds as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    def services() -> list[Service]:
        return [model.service for model in models.known() if model.service is not None]

    async def list_models(request: Request) -> Response:
        return json_response({"models": [one for s in services() for one in _models(s)]})

    async def list_running(request: Request) -> Response:
        found = []
        for service in services():
            running = {
                "expires_at": _NEVER,
                "size_vram": 0,
                "context_length": service.engine.max_model_len,
            }
            found += [model | running for model in _models(service)]
        return json_response({"models": found})

    async def show(service: Service, request: Request, fields: Fields) -> Response:
        body, headers = read_fields(fields, OllamaShowRequest, service.options.strict_params)
        service.resolve_model(served_name(service, body.model or body.name))
        return json_response(_description(service), headers)

    async def show_version(request: Request) -> Response:
        return json_response({"version": quire.__version__})

    return [
        Route("/api/tags", list_models, methods=["GET"]),
        Route("/api/ps", list_running, methods=["GET"]),
        post_route(models, "/api/show", show, any_type=True),
        Route("/api/version", show_version, methods=["GET"]),
    ]


def _models(service: Service) -> list[dict[str, Any]]:
    size = service.engine.stats().get(_WEIGHTS, 0)
    described = {
        "modified_at": stamp(service.created),
        "size": int(size) if isinstance(size, float | int) else 0,
        "digest": service.fingerprint,
        "details": _details(service),
    }
    return [{"name": name, "model": name} | described for name in service.model_names]


def _details(service: Service) -> dict[str, Any]:
    options = service.config.model
    family = service.engine.model_config.architecture.removesuffix("ForCausalLM").lower()
    return {
        "parent_model": "",
        "format": "gguf" if options.model.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": options.quantization or service.engine.model_config.dtype,
    }


def _description(service: Service) -> dict[str, Any]:
    model, template = service.engine.model_config, service.engine.tokenizer.chat_template
    family = _details(service)["family"]
    capabilities = ["completion", "embedding"]
    if service.formats.shows_tools and service.formats.tool_parser is not None:
        capabilities.append("tools")
    if service.formats.reasoning is not None:
        capabilities.append("thinking")
    return {
        "modelfile": "",
        "parameters": "",
        "template": "" if template is None else template.templates.get("default", ""),
        "details": _details(service),
        "model_info": {
            "general.architecture": family,
            f"{family}.context_length": service.engine.max_model_len,
            f"{family}.embedding_length": model.hidden_size,
            f"{family}.block_count": model.num_layers,
            f"{family}.attention.head_count": model.num_heads,
            f"{family}.attention.head_count_kv": model.num_kv_heads,
        },
        "capabilities": capabilities,
        "modified_at": stamp(service.created),
    }

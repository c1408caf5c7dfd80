"""Ollama's routes about models: ``/api/tags``, ``/api/show``, ``/api/ps``, ``/api/version``."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import quire
from quire.protocol.ollama.ollama import OPTION_NAMES, OllamaShowRequest
from quire.server.compat.ollama_names import OllamaNames, tagged
from quire.server.generation.model_facts import (
    ModelFacts,
    find_facts,
    list_facts,
    weight_bytes,
)
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.http.body import json_response, read_fields, read_json
from quire.store.modelfile import write_modelfile
from quire.store.store import UPLOADED
from quire.system.regular_files import open_regular

#: The end of the year 9999, unix seconds: no later time can be written.
_LAST_SECOND = 253402300799
_MAX_LICENSE_CHARACTERS = 1 << 16


def stamp(seconds: float) -> str:
    """Return a time in unix seconds as Ollama writes it; infinity is the end of the year 9999."""
    seconds = min(seconds, _LAST_SECOND)
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def routes(models: Models) -> list[Route]:
    """Return the routes."""
    models = OllamaNames(models)

    async def list_models(request: Request) -> Response:
        found = await list_facts(models)
        return json_response({"models": [entry for facts in found for entry in _entries(facts)]})

    async def list_running(request: Request) -> Response:
        found = []
        for facts in await list_facts(models, loaded=True):
            service = facts.model.service
            if service is not None:
                running = {
                    "expires_at": _expiry(service),
                    "size": weight_bytes(service) or facts.num_bytes,
                    "size_vram": 0,  # all is in main memory
                    "context_length": service.engine.max_model_len,
                }
                found += [entry | running for entry in _entries(facts)]
        return json_response({"models": found})

    async def show(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        if "model" not in fields and "name" in fields:
            fields["model"] = fields.pop("name")
        body, headers = read_fields(fields, OllamaShowRequest, models.shared.options.strict_params)
        return json_response(_description(await find_facts(models, body.model)), headers)

    async def show_version(request: Request) -> Response:
        return json_response({"version": quire.__version__})

    async def is_running(request: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    found = [
        Route("/api/tags", list_models, methods=["GET"]),
        Route("/api/ps", list_running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/version", show_version, methods=["GET"]),
    ]
    # The command line of Ollama asks for it before it does anything; the chat page will do as well.
    if not models.shared.options.playground:
        found.append(Route("/", is_running, methods=["GET"]))
    return found


def _expiry(service: Service) -> str:
    """Return the time at which a model is unloaded if no request uses it from now on."""
    residence = service.residence
    seconds = math.inf if residence is None else residence.seconds_left()
    return stamp(time.time() + seconds)


def _entries(facts: ModelFacts) -> list[dict[str, Any]]:
    """Return the description of a model, once for each of its names."""
    described = {
        "modified_at": stamp(facts.created),
        "size": facts.num_bytes,
        "digest": _digest(facts),
        "details": _details(facts),
        "capabilities": facts.capabilities,
    }
    names = [tagged(name) for name in facts.model.names]
    return [{"name": name, "model": name} | described for name in names]


def _digest(facts: ModelFacts) -> str:
    """Return what its clients tell models apart by; they cut it to 12 characters."""
    if facts.stored is not None:
        return facts.stored.digest
    return hashlib.sha256(repr(facts.model.config.model).encode()).hexdigest()


def _details(facts: ModelFacts) -> dict[str, Any]:
    details, family = facts.details, _family(facts)
    parent = "" if facts.stored is None else facts.stored.manifest.parent
    return {
        "parent_model": "" if parent == UPLOADED else parent,
        "format": "gguf" if facts.is_gguf else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": parameter_size(details.parameters) if details.parameters else "",
        "quantization_level": details.quantization or "unknown",
    }


def _family(facts: ModelFacts) -> str:
    return facts.details.architecture.removesuffix("ForCausalLM").lower()


def parameter_size(count: int) -> str:
    """Return a number of weights as Ollama writes it: ``7.6B``, ``494.03M``, ``12K``."""
    if count >= 10**9:
        return f"{count / 10**9:.1f}".removesuffix(".0") + "B"
    if count >= 10**6:
        return f"{count / 10**6:.2f}M"
    return f"{count // 1000}K" if count >= 1000 else str(count)


def _description(facts: ModelFacts) -> dict[str, Any]:
    template, settings = facts.chat_template, facts.sampling
    given = [(OPTION_NAMES[name], settings[name]) for name in settings if name in OPTION_NAMES]
    preset = facts.preset
    own = replace(preset, sampling=settings)
    described = {
        "modelfile": write_modelfile(tagged(facts.model.names[0]), own),
        "parameters": "\n".join(f"{option:<30} {value}" for option, value in given),
        "template": "" if template is None else template.templates.get("default", ""),
        "details": _details(facts),
        "model_info": _model_info(facts),
        "capabilities": facts.capabilities,
        "modified_at": stamp(facts.created),
    }
    optional = {"system": preset.system, "messages": preset.messages, "license": _license(facts)}
    return described | {key: value for key, value in optional.items() if value}


def _model_info(facts: ModelFacts) -> dict[str, Any]:
    family, details, config = _family(facts), facts.details, facts.config
    found = {
        "general.architecture": family,
        "general.basename": facts.model.names[0],
        "general.parameter_count": details.parameters,
        f"{family}.context_length": facts.context,
        f"{family}.embedding_length": details.embedding,
        f"{family}.block_count": details.layers,
    }
    if config is not None:
        found |= {
            f"{family}.feed_forward_length": config.intermediate_size,
            f"{family}.attention.head_count": config.num_heads,
            f"{family}.attention.head_count_kv": config.num_kv_heads,
            f"{family}.vocab_size": config.vocab_size,
        }
    return {key: value for key, value in found.items() if value}


def _license(facts: ModelFacts) -> str:
    """Return the licence that lies in a model's folder, else what its files call it."""
    path = None if facts.stored is None else facts.stored.path
    try:
        found = sorted(path.glob("LICENSE*")) if path is not None and path.is_dir() else []
        if not found:
            return facts.details.licence
        with open_regular(found[0]) as file:
            text = file.read(4 * _MAX_LICENSE_CHARACTERS).decode("utf-8", "replace")
    except OSError:
        return facts.details.licence
    return text[:_MAX_LICENSE_CHARACTERS] or facts.details.licence

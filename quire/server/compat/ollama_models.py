"""Ollama's routes about models: ``/api/tags``, ``/api/show``, ``/api/ps``, ``/api/version``."""

from __future__ import annotations

import hashlib
import math
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import quire
from quire.core.config import ModelOptions
from quire.protocol.ollama import OPTION_NAMES, OllamaShowRequest
from quire.server.compat.ollama_names import OllamaNames, tagged
from quire.server.generation.models import KnownModel, Models
from quire.server.generation.service import Service
from quire.server.http.body import json_response, model_name, read_fields, read_json
from quire.text.fim_tokens import FimTokens

#: The end of the year 9999, unix seconds: no later time can be written.
_LAST_SECOND = 253402300799
_WEIGHTS = 'memory_bytes{pool="weights"}'
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
#: A quantization at the end of a GGUF file's name, or the tag of a repository of such files.
_QUANTIZATION = re.compile(
    r"[-.:_]((?:I?Q\d|TQ\d|MXFP4)\w*|BF16|F16|F32)(?:\.gguf)?$", re.IGNORECASE
)
_WEIGHT_FILES = (".gguf", ".safetensors")
_MAX_LICENSE_CHARACTERS = 1 << 16


def stamp(seconds: float) -> str:
    """Return a time in unix seconds as Ollama writes it; infinity is the end of the year 9999."""
    seconds = min(seconds, _LAST_SECOND)
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def routes(models: Models) -> list[Route]:
    """Return the routes."""
    models = OllamaNames(models)

    async def list_models(request: Request) -> Response:
        return json_response({"models": [one for m in models.known() for one in _entries(m)]})

    async def list_running(request: Request) -> Response:
        found = []
        for model in models.known():
            if model.service is not None:
                running = {
                    "expires_at": _expiry(model.service),
                    "size_vram": 0,  # all is in main memory
                    "context_length": model.service.engine.max_model_len,
                }
                found += [entry | running for entry in _entries(model)]
        return json_response({"models": found})

    async def show(request: Request) -> Response:
        fields = await read_json(request, any_type=True)
        if "model" not in fields and "name" in fields:
            fields["model"] = fields.pop("name")
        async with models.lease(model_name(fields)) as service:
            body, headers = read_fields(fields, OllamaShowRequest, service.options.strict_params)
            service.resolve_model(body.model)
            return json_response(_description(service), headers)

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
    """Return when a model goes if nobody uses it from now on."""
    residence = service.residence
    seconds = math.inf if residence is None else residence.seconds_left()
    return stamp(time.time() + seconds)


def _entries(model: KnownModel) -> list[dict[str, Any]]:
    """Return what is told of a model, once for each of its names."""
    num_bytes, modified = _size(model)
    described = {
        "modified_at": stamp(modified),
        "size": num_bytes,
        "digest": hashlib.sha256(repr(model.config.model).encode()).hexdigest(),
        "details": _details(model.config.model, model.service),
    }
    names = [tagged(name) for name in model.names]
    return [{"name": name, "model": name} | described for name in names]


def _size(model: KnownModel) -> tuple[int, float]:
    """Return the bytes of a model's weights, in memory or else on disk, and since when they are."""
    if model.service is not None:
        size = model.service.engine.stats().get(_WEIGHTS, 0)
        return int(size) if isinstance(size, float | int) else 0, model.service.created
    try:
        path = Path(model.config.model.model).expanduser()
        files = [path] if path.is_file() else [*path.iterdir()]
        found = [file.stat() for file in files if file.suffix in _WEIGHT_FILES]
        return sum(f.st_size for f in found), max((f.st_mtime for f in found), default=0.0)
    except (OSError, ValueError, RuntimeError):  # a name that is no path
        return 0, 0.0


def _details(options: ModelOptions, service: Service | None) -> dict[str, Any]:
    found = _QUANTIZATION.search(options.model)
    is_gguf = found is not None or options.model.endswith(".gguf")
    family, size, level = "", "", "unknown"
    if service is not None:
        config = service.engine.model_config
        family = config.architecture.removesuffix("ForCausalLM").lower()
        size = parameter_size(config.num_parameters)
        level = level if is_gguf else _FLOATS.get(config.dtype, level)
    if found is not None:
        level = found[1].upper()
    return {
        "parent_model": "",
        "format": "gguf" if is_gguf else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": size,
        "quantization_level": options.quantization or level,
    }


def parameter_size(count: int) -> str:
    """Return a number of weights as Ollama writes it: ``7.6B``, ``494.03M``, ``12K``."""
    if count >= 10**9:
        return f"{count / 10**9:.1f}".removesuffix(".0") + "B"
    if count >= 10**6:
        return f"{count / 10**6:.2f}M"
    return f"{count // 1000}K" if count >= 1000 else str(count)


def _description(service: Service) -> dict[str, Any]:
    model, template = service.engine.model_config, service.engine.tokenizer.chat_template
    details = _details(service.config.model, service)
    family = details["family"]
    capabilities = ["completion", "embedding"]
    if service.formats.shows_tools and service.formats.tool_parser is not None:
        capabilities.append("tools")
    if service.formats.reasoning is not None:
        capabilities.append("thinking")
    if not FimTokens.find(service.engine.tokenizer).missing:
        capabilities.append("insert")
    settings = service.engine.default_sampling_params
    given = [(OPTION_NAMES[name], settings[name]) for name in settings if name in OPTION_NAMES]
    name = tagged(service.model_names[0])
    lines = [f"# To build a new Modelfile based on this, replace FROM with:\n# FROM {name}\n"]
    lines += [f"FROM {name}", *(f"PARAMETER {option} {value}" for option, value in given)]
    described = {
        "modelfile": "\n".join(lines) + "\n",
        "parameters": "\n".join(f"{option:<30} {value}" for option, value in given),
        "template": "" if template is None else template.templates.get("default", ""),
        "details": details,
        "model_info": {
            "general.architecture": family,
            "general.basename": service.model_names[0],
            "general.parameter_count": model.num_parameters,
            f"{family}.context_length": service.engine.max_model_len,
            f"{family}.embedding_length": model.hidden_size,
            f"{family}.block_count": model.num_layers,
            f"{family}.feed_forward_length": model.intermediate_size,
            f"{family}.attention.head_count": model.num_heads,
            f"{family}.attention.head_count_kv": model.num_kv_heads,
            f"{family}.vocab_size": model.vocab_size,
        },
        "capabilities": capabilities,
        "modified_at": stamp(service.created),
    }
    text = _license(service.config.model.model)
    return described | ({"license": text} if text else {})


def _license(model: str) -> str:
    """Return the licence that lies in a model's folder; empty where none does."""
    try:
        found = sorted(Path(model).expanduser().glob("LICENSE*"))
        return found[0].read_text("utf-8", "replace")[:_MAX_LICENSE_CHARACTERS] if found else ""
    except (OSError, ValueError, RuntimeError):  # a name that is no path
        return ""

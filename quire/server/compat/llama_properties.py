"""llama-server's routes about itself and its model: ``/props``, ``/slots``, ``/apply-template``."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.core.metrics import add_up
from quire.core.sampling_params import SamplingParams
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.server.access.authentication import client_of
from quire.server.generation.model_facts import ModelFacts, find_facts
from quire.server.generation.model_routes import get_route, post_route
from quire.server.generation.prompts.chat_prompt import read_conversation
from quire.server.generation.prompts.tokenized_prompts import render
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.http.body import Fields, json_response, read_fields_in_turn
from quire.server.http.http_errors import ApiError
from quire.text.offloading import run_by_size
from quire.text.templates.chat_template import ChatTemplate

#: Its names of settings, by ours.
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
        "max_tokens", "seed",
    )
} | {"repetition_penalty": "repeat_penalty"}  # fmt: skip
#: Stands for any seed.
_ANY_SEED = 2**32 - 1


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def show_props(request: Request) -> Response:
        facts = await find_facts(models, request.query_params.get("model"))
        return json_response(_props(facts))

    async def change_props(request: Request) -> Response:
        raise ApiError(501, "This server does not support changing global properties.")

    async def show_slots(service: Service, request: Request) -> Response:
        slots = _slots(service)
        wanted = request.query_params.get("fail_on_no_slot", "0") not in ("", "0", "false")
        if wanted and all(slot["is_processing"] for slot in slots):
            raise ApiError(503, "No slot is free.", headers={"Retry-After": "1"})
        return json_response(slots)

    async def change_slot(request: Request) -> Response:
        raise ApiError(501, "This server does not support slots action: no request has a slot.")

    async def apply_template(service: Service, request: Request, fields: Fields) -> Response:
        client_id = client_of(request.scope.get("api_key")).client_id
        body, headers = await read_fields_in_turn(
            client_id, fields, ChatCompletionRequest, service.options.strict_params
        )
        service.resolve_model(body.model)
        conversation, _ = read_conversation(service, body)
        parts = await render(service.engine.tokenizer, conversation, client_id)
        size = sum(map(len, parts))
        write = partial(msgspec.json.encode, {"prompt": "".join(parts)})
        return json_response(await run_by_size(size, client_id, write), headers)

    return [
        Route("/props", show_props, methods=["GET"]),
        Route("/props", change_props, methods=["POST"]),
        get_route(models, "/slots", show_slots),
        Route("/slots/{slot}", change_slot, methods=["POST"]),
        post_route(models, "/apply-template", apply_template, any_type=True),
    ]


def _props(facts: ModelFacts) -> dict[str, Any]:
    """Return what a model is like, which sleeps, as llama-server calls it, if it is not loaded."""
    template, sampling, model = facts.chat_template, facts.sampling, facts.model
    special = {} if template is None else template.special_tokens
    templates = {} if template is None else template.templates
    settings = SamplingParams(**sampling)
    params = {theirs: getattr(settings, ours) for ours, theirs in _NAMES.items()}
    params["seed"] = _ANY_SEED if params["seed"] is None else params["seed"]
    default_limit = sampling.get("max_tokens")
    params["max_tokens"] = params["n_predict"] = -1 if default_limit is None else default_limit
    props = {
        "default_generation_settings": {
            "n_ctx": facts.context or 0,
            "speculative": bool(model.config.speculative.methods()),
            "params": params,
        },
        "total_slots": model.config.scheduler.max_num_seqs,
        "model_alias": model.names[0],
        "model_path": model.config.model.model,
        "modalities": {"vision": False, "audio": False, "video": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": templates.get("default", ""),
        "chat_template_caps": _abilities(template),
        "bos_token": special.get("bos_token", ""),
        "eos_token": special.get("eos_token", ""),
        "build_info": f"quire-{quire.__version__}",
        "is_sleeping": model.service is None,
    }
    tool_use = templates.get("tool_use")
    return props | ({} if tool_use is None else {"chat_template_tool_use": tool_use})


def _abilities(template: ChatTemplate | None) -> dict[str, bool]:
    """Return what a conversation's prompt can show to the model."""
    if template is None:
        return {}
    texts = template.templates.values()
    return {
        "supports_string_content": True,
        "supports_system_role": any("system" in text for text in texts),
        "supports_tools": template.shows_tools,
        "supports_tool_calls": any("tool_calls" in text for text in texts),
        "supports_preserve_reasoning": any("reasoning_content" in text for text in texts),
        "supports_reasoning_effort": template.reads("reasoning_effort"),
    }


def _slots(service: Service) -> list[dict[str, Any]]:
    """Return as many slots as requests may run at once; those that do come first."""
    running = add_up(service.engine.stats(), "num_requests_running")
    return [
        {
            "id": index,
            "n_ctx": service.engine.max_model_len,
            "speculative": bool(service.config.speculative.methods()),
            "is_processing": index < running,
        }
        for index in range(service.config.scheduler.max_num_seqs)
    ]

"""Anthropic's routes about the models: ``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from quire.protocol.anthropic.anthropic import AnthropicModel, AnthropicModelList, Effort
from quire.protocol.decimal_text import read_decimal
from quire.server.compat.ollama_models import stamp
from quire.server.generation.model_facts import ModelFacts, find_facts, list_facts
from quire.server.generation.prompts.reasoning_effort import has_effect
from quire.server.generation.served_models import Models
from quire.server.http.body import json_response
from quire.server.http.http_errors import ANTHROPIC_HEADER, ApiError

#: Models on a page, by default and at most.
PAGE, MAX_PAGE = 20, 1000
#: What no model here can do.
_MISSING = ("batch", "citations", "code_execution", "pdf_input")


class AnthropicRoute(Route):
    """A route that only requests of Anthropic's clients take; others are passed to the next."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Look at the header that all these clients send."""
        theirs = any(name == ANTHROPIC_HEADER for name, _ in scope["headers"])
        return super().matches(scope) if theirs else (Match.NONE, {})


def routes(models: Models) -> list[Route]:
    """Return the routes; they must stand before OpenAI's."""

    async def list_models(request: Request) -> Response:
        facts = await list_facts(models)
        found = [_model(one, name) for one in facts for name in one.model.names]
        return json_response(_page(request, found))

    async def show_model(request: Request) -> Response:
        name = request.path_params["model"]
        facts = await find_facts(models, name)
        return json_response(_model(facts, facts.meant_name(name)))

    return [
        AnthropicRoute("/v1/models", list_models, methods=["GET"]),
        AnthropicRoute("/v1/models/{model:path}", show_model, methods=["GET"]),
    ]


def _model(facts: ModelFacts, name: str) -> AnthropicModel:
    return AnthropicModel(
        id=name,
        display_name=name,
        created_at=stamp(facts.created),
        max_input_tokens=facts.context,
        max_tokens=facts.context,
        capabilities=_capabilities(facts),
    )


def _capabilities(facts: ModelFacts) -> dict[str, Any]:
    """Return what a model can do, under Anthropic's names."""
    template, thinks = facts.chat_template, facts.formats.reasoning is not None
    efforts = {name: _supported(has_effect(name, template)) for name in get_args(Effort)}
    modes = {"enabled": thinks, "adaptive": thinks, "disabled": True, "between_tools": True}
    return dict.fromkeys(_MISSING, _supported(False)) | {
        "image_input": _supported("vision" in facts.capabilities),
        "structured_outputs": _supported(True),
        "effort": _supported(any(one["supported"] for one in efforts.values())) | efforts,
        "thinking": _supported(thinks)
        | {"types": {name: _supported(value) for name, value in modes.items()}},
        "context_management": _supported(False),
        "server_tools": _supported(False)
        | dict.fromkeys(("code_execution", "web_search"), _supported(False)),
    }


def _supported(value: bool) -> dict[str, Any]:
    return {"supported": value}


def _page(request: Request, models: list[AnthropicModel]) -> AnthropicModelList:
    """Return the part of a list that a request asks for.

    Raises:
        ApiError: 400 when ``before_id`` or ``after_id`` names no model of the list, or ``limit`` is
            not a number.
    """
    asked = request.query_params
    limit = asked.get("limit", str(PAGE))
    size = read_decimal(limit, MAX_PAGE)
    if not size:
        raise ApiError(400, f"[limit] must be 1 to {MAX_PAGE}; got {limit[:40]!a}.", param="limit")
    names = [model.id for model in models]
    for field in ("after_id", "before_id"):
        name = asked.get(field)
        if name is not None and name not in names:
            raise ApiError(400, f"[{field}] must be a model; got {name[:80]!a}.", param=field)
    first = names.index(asked["after_id"]) + 1 if "after_id" in asked else 0
    end = names.index(asked["before_id"]) if "before_id" in asked else len(models)
    found = models[first:end]
    shown = found[-size:] if "before_id" in asked and "after_id" not in asked else found[:size]
    return AnthropicModelList(
        data=shown,
        has_more=len(shown) < len(found),
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )

"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.protocol.openai.model_list import ModelCard, ModelList
from quire.server.generation.model_facts import ModelFacts, find_facts, list_facts
from quire.server.generation.served_models import Models
from quire.server.http.body import json_response
from quire.server.http.http_errors import ApiError


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def list_models(request: Request) -> Response:
        found = await list_facts(models)
        cards = [card for facts in found for card in _cards(facts)]
        return json_response(ModelList(data=cards))

    async def show_model(request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            raise ApiError(404, "There is no route /v1/models/.")
        facts = await find_facts(models, name)
        for card in _cards(facts):
            if card.id == name:
                return json_response(card)
        return json_response(_card(facts, facts.meant_name(name)))

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        # A name may be a path or a hub id, so it may hold slashes.
        Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    ]


def _cards(facts: ModelFacts) -> list[ModelCard]:
    """Return the names of a model, then its adapters."""
    cards = [_card(facts, name) for name in facts.model.names]
    service = facts.model.service
    for adapter in () if service is None else service.adapters.list():
        card = _card(facts, adapter.name)
        card.root, card.parent = adapter.path, facts.model.names[0]
        cards.append(card)
    return cards


def _card(facts: ModelFacts, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=facts.created,
        root=facts.model.config.model.model,
        max_model_len=facts.context,
        capabilities=facts.capabilities,
        state=facts.model.state,
    )

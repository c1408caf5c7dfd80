"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.protocol.model_list import ModelCard, ModelList
from quire.server.generation.models import KnownModel, Models, find_known
from quire.server.http.body import json_response
from quire.server.http.errors import ApiError


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def list_models(request: Request) -> Response:
        cards = [_card(model, name) for model in models.known() for name in model.names]
        return json_response(ModelList(data=cards))

    async def show_model(request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            raise ApiError(404, "There is no route /v1/models/.")
        return json_response(_card(*find_known(models, name)))

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        # A name may be a path or a hub id, so it may hold slashes.
        Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    ]


def _card(model: KnownModel, name: str) -> ModelCard:
    service = model.service
    return ModelCard(
        id=name,
        created=0 if service is None else service.created,
        root=model.config.model.model,
        max_model_len=None if service is None else service.engine.max_model_len,
    )

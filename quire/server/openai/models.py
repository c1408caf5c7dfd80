"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.protocol.model_list import ModelCard, ModelList
from quire.server.generation.service import Service
from quire.server.http.body import json_response
from quire.server.http.errors import ApiError


def routes(service: Service) -> list[Route]:
    """Return the routes."""

    def card(name: str) -> ModelCard:
        return ModelCard(
            id=name,
            created=service.created,
            root=service.config.model.model,
            max_model_len=service.engine.max_model_len,
        )

    async def list_models(request: Request) -> Response:
        return json_response(ModelList(data=[card(name) for name in service.model_names]))

    async def show_model(request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            raise ApiError(404, "There is no route /v1/models/.")
        return json_response(card(service.resolve_model(name)))

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        # A name may be a path or a hub id, so it may hold slashes.
        Route("/v1/models/{model:path}", show_model, methods=["GET"]),
    ]

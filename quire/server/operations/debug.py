"""``GET /debug/kv_cache``: the block tables of live requests, for people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from quire.server.generation.model_routes import get_route
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def kv_cache(service: Service, request: Request) -> Response:
        return PlainTextResponse(await service.engine.describe_cache() + "\n")

    return [get_route(models, "/debug/kv_cache", kv_cache)]

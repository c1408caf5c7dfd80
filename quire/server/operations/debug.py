"""``GET /debug/kv_cache``: the block tables of live requests, for people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from quire.server.generation.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes."""

    async def kv_cache(request: Request) -> Response:
        return PlainTextResponse(await service.engine.describe_cache() + "\n")

    return [Route("/debug/kv_cache", kv_cache, methods=["GET"])]

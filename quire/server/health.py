"""``/health``, ``/ping``, ``/version`` and ``/metrics``: what probes and scrapers read."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.server.service import Service


def routes(service: Service) -> list[Route]:
    """Return the routes."""

    async def health(request: Request) -> Response:
        service.engine.check_health()
        return Response()

    async def version(request: Request) -> Response:
        body = msgspec.json.encode({"version": quire.__version__})
        return Response(body, media_type="application/json")

    async def metrics(request: Request) -> Response:
        body, content_type = service.metrics.exposition()
        return Response(body, headers={"content-type": content_type})

    return [
        Route("/health", health, methods=["GET"]),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]

"""What probes and scrapers read: health in four views, ``/load``, ``/version`` and ``/metrics``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.server.generation.service import Service
from quire.server.http.body import json_response
from quire.server.http.errors import ApiError


def routes(service: Service) -> list[Route]:
    """Return the routes."""

    async def health(request: Request) -> Response:
        service.check_serving()
        return Response()

    async def live(request: Request) -> Response:
        return Response()

    async def ready(request: Request) -> Response:
        service.check_serving()
        progress, options = service.engine.progress(), service.options
        limit = max(options.ready_timeout, progress.step_seconds)
        limit = min(limit, options.watchdog_timeout)
        if progress.stalled_seconds > limit:
            raise ApiError(
                503,
                f"No step has ended for {progress.stalled_seconds:.0f} s (--ready-timeout "
                f"{options.ready_timeout:g}; as steps went, {limit:.1f}) while "
                f"{progress.pending} requests are pending.",
            )
        return Response()

    async def progress(request: Request) -> Response:
        now = service.engine.progress()
        return json_response(
            {
                "last_step_age_seconds": now.last_step_age,
                "pending": now.pending,
                "oldest_queue_age_seconds": now.oldest_queue_age,
            }
        )

    async def version(request: Request) -> Response:
        return json_response({"version": quire.__version__})

    async def load(request: Request) -> Response:
        return json_response({"server_load": service.metrics.num_in_flight})

    async def metrics(request: Request) -> Response:
        body, content_type = service.metrics.exposition()
        return Response(body, headers={"content-type": content_type})

    return [
        Route("/health", health, methods=["GET"]),
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/health/progress", progress, methods=["GET"]),
        # Triton's names of the two probes.
        Route("/v2/health/live", live, methods=["GET"]),
        Route("/v2/health/ready", ready, methods=["GET"]),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/version", version, methods=["GET"]),
        Route("/load", load, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]

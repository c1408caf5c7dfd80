"""Routes for probes and scrapers: health in four views, ``/load``, ``/version``, ``/metrics``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import quire
from quire.llm.engine_views import actual_engine
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.http.body import json_response
from quire.server.http.http_errors import ApiError, not_loaded


def routes(models: Models) -> list[Route]:
    """Return the routes."""
    metrics = models.shared.metrics

    def services() -> list[Service]:
        return [model.service for model in models.known() if model.service is not None]

    async def health(request: Request) -> Response:
        name = request.query_params.get("model")
        if name is not None:
            model = await models.look_up(name)
            if model.loading is not None:
                raise not_loaded(model.names[0], model.loading)
            if model.service is None:
                told = f": {model.error}" if model.error else "."
                raise ApiError(503, f"{model.names[0]} is {model.state}{told}")
            _check_ready(model.service)
        for service in services() if name is None else ():
            service.check_serving()
        return Response()

    async def live(request: Request) -> Response:
        return Response()

    async def ready(request: Request) -> Response:
        for service in services():
            _check_ready(service)
        return Response()

    async def progress(request: Request) -> Response:
        found = [engine.progress() for engine in {actual_engine(s.engine) for s in services()}]
        return json_response(
            {
                "last_step_age_seconds": max((p.last_step_age for p in found), default=0.0),
                "pending": sum(p.pending for p in found),
                "oldest_queue_age_seconds": max((p.oldest_queue_age for p in found), default=0.0),
            }
        )

    async def version(request: Request) -> Response:
        return json_response({"version": quire.__version__})

    async def load(request: Request) -> Response:
        return json_response({"server_load": metrics.num_in_flight})

    async def scrape(request: Request) -> Response:
        body, content_type = metrics.exposition()
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
        Route("/metrics", scrape, methods=["GET"], name="metrics"),
    ]


def _check_ready(service: Service) -> None:
    """Return when requests are taken and advance.

    Raises:
        EngineDeadError: The engine has stopped, or is being restarted.
        ApiError: 503, the server is about to end, or nothing advances.
    """
    service.check_serving()
    progress, options = service.engine.progress(), service.options
    limit = max(options.ready_timeout, progress.step_seconds)
    limit = min(limit, options.watchdog_timeout)
    if progress.stalled_seconds > limit:
        raise ApiError(
            503,
            f"No step has ended for {progress.stalled_seconds:.0f} s (--ready-timeout "
            f"{options.ready_timeout:g}; as steps went, {limit:.1f}) while "
            f"requests are pending (number: {progress.pending}).",
        )

"""``POST /reset_prefix_cache``, as vLLM has it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.generation.served_models import Models


def routes(models: Models) -> list[Route]:
    """Return the route."""

    async def reset(request: Request) -> Response:
        for model in models.known():
            if model.service is not None:
                await model.service.engine.reset_prefix_cache()
        return Response()

    return [Route("/reset_prefix_cache", reset, methods=["POST"])]

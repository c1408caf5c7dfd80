"""Answers of a server while its model loads: it lives, is not ready, and when to try again.

Nothing of the engine is imported here: these answers are there in the first second.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.core.metrics import Samples
from quire.llm.load_state import Loading
from quire.server.access.authentication import ApiKey
from quire.server.access.outer_layers import with_outer_layers
from quire.server.http.body import json_response
from quire.server.http.http_errors import not_loaded
from quire.server.playground import routes as playground
from quire.server.server_options import ServerOptions


def create_loading_app(
    options: ServerOptions, keys: Sequence[ApiKey], loading: Loading, model_name: str
) -> ASGIApp:
    """Return the app that answers until the model is loaded.

    Args:
        options: The server's settings.
        keys: The server's API keys.
        loading: The progress of loading.
        model_name: Served name of the model.
    """

    async def live(request: Request) -> Response:
        return Response()

    async def progress(request: Request) -> Response:
        return json_response(
            {
                "loading_seconds": loading.seconds,
                "loaded_bytes": loading.done_bytes,
                "total_bytes": loading.total_bytes,
            }
        )

    async def metrics(request: Request) -> Response:
        from quire.server.observability.exposition import CONTENT_TYPE, exposition

        samples: Samples = {"model_load_progress_perc": loading.part}
        text = exposition(samples, options.metrics_prefix, model_name)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    routes = [
        Route("/health/live", live, methods=["GET"]),
        Route("/v2/health/live", live, methods=["GET"]),
        Route("/health/progress", progress, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]

    def refusal(scope: Scope) -> Response:
        error = not_loaded(model_name, loading)
        error.headers["Connection"] = "close"
        return error.response(scope)

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await refusal(scope)(scope, receive, send)

    async def refuse_post(request: Request) -> Response:
        return refusal(request.scope)

    # The page is there at once; it says what it waits for and tries again in time.
    page = playground.routes() if options.playground else []
    shown = {(method, route.path) for route in page for method in route.methods or ()}
    routes += [*page, Route("/", refuse_post, methods=["POST"])] if page else []
    router = Router(routes, redirect_slashes=False, default=refuse)
    return with_outer_layers(router, options, keys, shown)

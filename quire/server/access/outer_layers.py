"""Middleware around the routes of every app: request ids and errors, keys, CORS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from quire.server.access.authentication import ApiKey, RequireKey
from quire.server.http.boundary import Boundary
from quire.server.observability.request_record import Sink
from quire.server.server_options import ServerOptions


def with_outer_layers(
    app: ASGIApp,
    options: ServerOptions,
    keys: Sequence[ApiKey],
    open_routes: Set[tuple[str, str]] = frozenset(),
    sinks: Iterable[Sink] = (),
) -> ASGIApp:
    """Return ``app`` with the middleware that every request passes through.

    Args:
        app: The routes.
        options: The server's settings.
        keys: The server's API keys; requests need none when it is empty.
        open_routes: Methods and paths that need no key, besides those of probes.
        sinks: Receivers of the record of each request that has ended.
    """
    if keys:
        app = RequireKey(app, keys, open_routes)
    app = Boundary(app, sinks)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Request-Id", "X-Ignored-Params", "Retry-After"),
        )
    return app

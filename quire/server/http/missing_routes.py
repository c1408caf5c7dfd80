"""Answers to paths that have no route, with the route that may have been meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from quire.server.http.http_errors import ApiError, path_of

#: Characters; longer paths are not compared.
MAX_COMPARED = 64
_NEAR = 0.85


class MissingRoute:
    """The ASGI app of all other paths.

    Args:
        routes: Routes of the server.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        paths = (route.path for route in routes if isinstance(route, Route))
        self._paths = sorted({path for path in paths if "{" not in path and path != "/"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request.

        Raises:
            ApiError: 404.
        """
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        meant = self._meant(path_of(scope))
        hint = f" Did you mean {meant}?" if meant else ""
        raise ApiError(404, f"There is no route {scope['path']}.{hint}")

    def _meant(self, path: str) -> str:
        """Return the route that ends with a path, or the nearest one, or one that ends the path."""
        path = path.rstrip("/")
        if not path or len(path) > MAX_COMPARED:
            return ""
        around = sorted((known for known in self._paths if known.endswith(path)), key=len)
        near = get_close_matches(path, self._paths, 1, _NEAR)
        inside = sorted((known for known in self._paths if path.endswith(known)), key=len)
        return next(iter([*around, *near, *reversed(inside)]), "")

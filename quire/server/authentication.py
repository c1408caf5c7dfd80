"""Bearer keys, checked before anything of a request is read."""

from __future__ import annotations

import hmac
from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.errors import ApiError

#: What probes and scrapers read without a key.
OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})


class RequireKey:
    """ASGI middleware: every path but ``open_paths`` needs ``Authorization: Bearer KEY``."""

    def __init__(self, app: ASGIApp, key: str, open_paths: Set[str] = OPEN_PATHS) -> None:
        self.app = app
        self._open_paths = open_paths
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            given = dict(scope["headers"]).get(b"authorization", b"")
            # Constant time, so that a key cannot be guessed byte by byte.
            if path not in self._open_paths and not hmac.compare_digest(given, self._expected):
                error = ApiError(
                    401,
                    "Unauthorized: send the server's API key as `Authorization: Bearer KEY`.",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

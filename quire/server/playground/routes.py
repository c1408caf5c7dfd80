"""``GET /`` and the page's assets; what the page asks of the API goes through its own routes.

The page holds no secret, so it needs no key. Its policy lets it run only its own scripts and talk
only to this server, so that text of a model can do nothing but be read.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: Files by the paths they are served at.
PAGE = {"/": "index.html"} | {
    f"/playground/{file.name}": file.name
    for file in sorted(FOLDER.iterdir())
    if file.suffix in {".css", ".js"}
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> list[Route]:
    """Read the page and return its routes."""
    return [_route(path, FOLDER / name) for path, name in PAGE.items()]


def _route(path: str, file: Path) -> Route:
    body = file.read_bytes()
    media_type = MEDIA_TYPES[file.suffix]

    async def page(request: Request) -> Response:
        return Response(body, headers=HEADERS, media_type=media_type)

    return Route(path, page, methods=["GET"])

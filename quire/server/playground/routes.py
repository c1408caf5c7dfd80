"""``GET /`` and the page's assets, and ``POST /playground/render``, which reads its Markdown.

The page holds no secret, so it needs no key. Its policy lets it run only its own scripts and talk
only to this server, so that text of a model can do nothing but be read.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.server.http.body import json_response, read_fields, read_json
from quire.server.http.errors import ApiError
from quire.server.playground.markdown import MAX_CHARACTERS, TooComplex, render

FOLDER = Path(__file__).parent
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: Files by the paths they are served at.
PAGE = {"/": "index.html"} | {
    f"/playground/{file.name}": file.name
    for file in sorted(FOLDER.iterdir())
    if file.suffix in {".css", ".js"}
}
#: Texts that may wait to be read; one is read at a time.
MAX_WAITING = 16
#: A character takes at most six bytes as ASCII, twelve outside of the basic plane.
MAX_BODY_BYTES = 12 * MAX_CHARACTERS + 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RenderRequest(msgspec.Struct, kw_only=True):
    """What ``POST /playground/render`` takes.

    Attributes:
        text: Markdown.
    """

    text: str


class Rendering:
    """Reads Markdown in one thread, which is started with the first text."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "quire-markdown")
        self._num_waiting = 0

    async def answer(self, request: Request) -> Response:
        """Answer ``{"blocks": [[start, node], ...]}``; see :func:`render`.

        Raises:
            ApiError: 413 the text is too long, 429 too many wait.
            RequestError: The body is wrong, or the text takes too long to read.
        """
        fields = await read_json(request, max_bytes=MAX_BODY_BYTES)
        body, headers = read_fields(fields, RenderRequest, False)
        if len(body.text) > MAX_CHARACTERS:
            raise ApiError(
                413,
                f"[text] must be at most {MAX_CHARACTERS} characters; got {len(body.text)}. "
                "Send its blocks in pieces.",
            )
        if self._num_waiting >= MAX_WAITING:
            raise ApiError(429, "Too many texts wait to be read.", headers={"Retry-After": "1"})
        self._num_waiting += 1
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(self._thread, _render, body.text)
        except TooComplex as error:
            raise RequestError(
                "[text] must be readable in little time, without much nesting; got another. "
                "Show it as it is.",
                "text",
            ) from error
        finally:
            self._num_waiting -= 1
        return json_response(content, headers)


def _render(text: str) -> bytes:
    return msgspec.json.encode({"blocks": render(text)})


def routes() -> list[Route]:
    """Read the page and return its routes."""
    files = [_route(path, FOLDER / name) for path, name in PAGE.items()]
    return [*files, Route("/playground/render", Rendering().answer, methods=["POST"])]


def _route(path: str, file: Path) -> Route:
    body = file.read_bytes()
    media_type = MEDIA_TYPES[file.suffix]

    async def page(request: Request) -> Response:
        return Response(body, headers=HEADERS, media_type=media_type)

    return Route(path, page, methods=["GET"])

"""``POST /playground/render``: the page's Markdown, read in a thread within limits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.server.http.body import json_response, read_fields, read_json
from quire.server.http.errors import ApiError
from quire.server.playground.markdown import MAX_CHARACTERS, TooComplex, render

#: Texts that may wait to be read; one is read at a time.
MAX_WAITING = 16
#: A character takes at most six bytes as ASCII, twelve outside of the basic plane.
MAX_BODY_BYTES = 12 * MAX_CHARACTERS + 1024


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
    """Return the route."""
    return [Route("/playground/render", Rendering().answer, methods=["POST"])]

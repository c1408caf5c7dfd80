"""``POST /playground/render``: the page's Markdown, read in a thread within limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import CapacityError, RequestError
from quire.server.access.authentication import client_of
from quire.server.http.body import json_response, read_fields, read_json
from quire.server.http.http_errors import ApiError
from quire.server.playground.markdown import MAX_CHARACTERS, TooComplex, render
from quire.system.fair_slots import FairSlots

#: Texts of one client that may wait to be read; one is read at a time.
MAX_WAITING = 16
#: A character takes at most six bytes as ASCII, twelve outside of the basic plane.
MAX_BODY_BYTES = 12 * MAX_CHARACTERS + 1024


class RenderRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /playground/render``.

    Attributes:
        text: A text in Markdown.
    """

    text: str


class Rendering:
    """Reads Markdown in one thread, which clients have in turn."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "quire-markdown")
        self._turns = FairSlots(1, 1, MAX_WAITING, "Too many texts wait to be read.")

    async def answer(self, request: Request) -> Response:
        """Answer ``{"blocks": [[start, node], ...]}``; see :func:`render`.

        Raises:
            ApiError: 413 the text is too long, 429 too many texts wait.
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
        client_id = client_of(request.scope.get("api_key")).client_id
        try:
            content = await self._turns.run(client_id, self._thread, partial(_render, body.text))
        except CapacityError as error:
            raise ApiError(429, str(error), headers={"Retry-After": "1"}) from error
        except TooComplex as error:
            raise RequestError(
                "[text] must be readable in little time, without much nesting; got another. "
                "Show it as it is.",
                "text",
            ) from error
        return json_response(content, headers)


def _render(text: str) -> bytes:
    return msgspec.json.encode({"blocks": render(text)})


def routes() -> list[Route]:
    """Return the route."""
    return [Route("/playground/render", Rendering().answer, methods=["POST"])]

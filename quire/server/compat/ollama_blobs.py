"""Ollama's uploads: ``HEAD`` and ``POST /api/blobs/{digest}``; models are made elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import CapacityError, ConfigError, ModelLoadError
from quire.server.http.body import check_media_type
from quire.server.http.http_errors import ApiError, without_folders
from quire.store.blobs import MAX_BLOB_BYTES, BlobWriter, find_blob, read_digest
from quire.store.store import Store

log = logging.getLogger(__name__)

#: Files that come at once; further ones are sent away.
MAX_UPLOADS = 4
#: Bytes that are hashed and written at a time.
_WRITTEN_BYTES = 1 << 20

T = TypeVar("T")


class Uploads:
    """The uploads of a server.

    Args:
        store: The model store that keeps the files.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._num = 0

    async def answer(self, request: Request) -> Response:
        """Take a file whose digest is in the path, or say whether it is there.

        Raises:
            ApiError: The content has another digest, is too large, or cannot be written.
            CapacityError: The limit of concurrent uploads is reached.
            ClientDisconnect: The client has left; nothing of the file is kept.
        """
        digest = await in_thread(lambda: read_digest(request.path_params["digest"]))
        found = await in_thread(lambda: find_blob(digest)) is not None
        if request.method == "HEAD":
            return Response(status_code=200 if found else 404)
        check_media_type(request, any_type=True)
        nbytes = _announced(request)
        if found:
            async for _ in request.stream():  # clients that did not ask before send all of it
                pass
            return Response()
        if self._num >= MAX_UPLOADS:
            raise CapacityError("[blobs] too many files are being uploaded. Try again.", 10)
        self._num += 1
        try:
            await in_thread(self._store.remove_unused_blobs)
            await self._receive(request, digest, nbytes)
        finally:
            self._num -= 1
        return Response(status_code=201)

    async def _receive(self, request: Request, digest: str, nbytes: int | None) -> None:
        with ExitStack() as stack:
            writer = stack.enter_context(await in_thread(lambda: BlobWriter(digest, nbytes)))
            waiting = bytearray()
            async for chunk in request.stream():
                waiting += chunk
                if len(waiting) >= _WRITTEN_BYTES:
                    data, waiting = bytes(waiting), bytearray()
                    await in_thread(partial(writer.write, data))
            await in_thread(partial(writer.write, bytes(waiting)))
            await in_thread(writer.finish)


def _announced(request: Request) -> int | None:
    """Return the size that a request says its body has."""
    declared = request.headers.get("content-length", "")
    nbytes = int(declared) if declared.isdecimal() and len(declared) < 20 else None
    if nbytes is not None and nbytes > MAX_BLOB_BYTES:
        raise ApiError(413, f"[blob] must be at most {MAX_BLOB_BYTES} bytes; got {nbytes}.")
    return nbytes


async def in_thread(work: Callable[[], T]) -> T:
    """Run what looks at the disk; the store's errors are the request's."""
    try:
        return await asyncio.to_thread(work)
    except (ConfigError, ModelLoadError) as error:
        log.warning("%s", error)
        raise ApiError(400, without_folders(str(error))) from error


def routes(store: Store) -> list[Route]:
    """Return the routes."""
    uploads = Uploads(store)
    return [Route("/api/blobs/{digest}", uploads.answer, methods=["HEAD", "POST"])]

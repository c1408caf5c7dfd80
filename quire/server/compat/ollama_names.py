"""The names that Ollama's clients use for models: all have a tag, ``latest`` where none is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.types import Receive

from quire.server.generation.served_models import KnownModel, Models
from quire.server.generation.service import Service
from quire.server.http.http_errors import ApiError
from quire.store.manifests import LATEST


def tagged(name: str) -> str:
    """Return a name as Ollama lists it: a tag comes after its last slash."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


class OllamaNames:
    """A server's models, with Ollama's error text for a name that no model has.

    Args:
        models: The server's models; see :class:`Models`.
    """

    def __init__(self, models: Models) -> None:
        self.shared = models.shared
        self._models = models

    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        with _their_words(name):
            async with self._models.lease(name, receive) as service:
                yield service

    def known(self) -> list[KnownModel]:
        return self._models.known()

    async def listed(self) -> list[KnownModel]:
        return await self._models.listed()

    async def look_up(self, name: str | None) -> KnownModel:
        with _their_words(name):
            return await self._models.look_up(name)


@contextmanager
def _their_words(name: str | None) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status == 404 and error.param == "model":
            raise ApiError(404, f"model '{name}' not found", param="model") from error
        raise

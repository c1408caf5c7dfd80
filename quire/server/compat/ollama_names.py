"""The names that Ollama's clients use for models: all have a tag, ``latest`` where none is said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from quire.models.manifests import LATEST
from quire.server.generation.models import KnownModel, Models
from quire.server.generation.service import Service
from quire.server.http.errors import ApiError


def tagged(name: str) -> str:
    """Return a name as Ollama lists it: a tag comes after its last slash."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


class OllamaNames:
    """A server's models, with Ollama's words for a name that is no model's.

    Args:
        models: Of the server; see :class:`Models`.
    """

    def __init__(self, models: Models) -> None:
        self.shared = models.shared
        self._models = models

    @asynccontextmanager
    async def lease(
        self, name: str | None, receive: Receive | None = None
    ) -> AsyncIterator[Service]:
        try:
            async with self._models.lease(name, receive) as service:
                yield service
        except ApiError as error:
            if error.status == 404 and error.param == "model":
                raise ApiError(404, f"model '{name}' not found", param="model") from error
            raise

    def known(self) -> list[KnownModel]:
        return self._models.known()

"""The names that Ollama's clients use for models: all have a tag, ``latest`` where none is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.types import Receive

from quire.server.generation.by_model import KnownModel, Models
from quire.server.generation.service import Service
from quire.server.http.errors import ApiError

LATEST = ":latest"
#: Said of every name that says nothing else of where the model is from.
_PLACES = ("registry.ollama.ai/", "library/")


def tagged(name: str) -> str:
    """Return a name as Ollama lists it: a tag comes after its last slash."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def meant_name(names: Iterable[str], given: str) -> str:
    """Return which of our names is meant, in any case; ``given`` without ``:latest`` if none is."""
    names = list(names)
    if given in names:
        return given
    wanted = _whole(given)
    return next((name for name in names if _whole(name) == wanted), given.removesuffix(LATEST))


def _whole(name: str) -> str:
    name = name.strip().lower()
    for place in _PLACES:
        name = name.removeprefix(place)
    return tagged(name)


class OllamaNames:
    """A server's models under these names, with Ollama's words for a name that is no model's.

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
        names = [ours for model in self.known() for ours in model.names]
        meant = None if name is None else meant_name(names, name)
        try:
            async with self._models.lease(meant, receive) as service:
                yield service
        except ApiError as error:
            if error.status == 404 and error.param == "model":
                raise ApiError(404, f"model '{name}' not found", param="model") from error
            raise

    def known(self) -> list[KnownModel]:
        return self._models.known()

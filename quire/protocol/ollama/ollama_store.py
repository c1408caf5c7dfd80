"""``/api/pull``, ``/api/create``, ``/api/copy`` and ``/api/delete`` of Ollama on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import RequestError
from quire.protocol.request_body import RequestBody

#: Their names of sampling settings that have another one here.
_NAMES = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}


class StoreRequest(RequestBody, kw_only=True):
    """A request about one name; the older word for ``model`` is ``name``."""

    name: str | None = None
    stream: bool | None = None

    @property
    def meant(self) -> str:
        """The model's name.

        Raises:
            RequestError: The body names no model.
        """
        if not (self.model or self.name):
            raise RequestError("model is required", "model")
        return self.model or self.name or ""


class OllamaPullRequest(StoreRequest, kw_only=True):
    """``POST /api/pull`` and ``/api/push``, and ``DELETE /api/delete``.

    ``insecure``, which clients may send by default, does nothing: hosts are always checked.
    """

    refused = {"username": ("",), "password": ("",)}


class OllamaCreateRequest(StoreRequest, kw_only=True):
    """``POST /api/create``: a name for a model or for uploaded files, with settings of its own."""

    refused = {
        "adapters": ({},),
        "license": ("", []),
        "quantize": ("",),
        "quantization": ("",),
    }

    from_: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] = {}
    system: str | None = None
    template: str | None = None
    messages: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {}

    def sampling(self) -> dict[str, Any]:
        """Return the parameters under our names."""
        return {_NAMES.get(name, name): value for name, value in self.parameters.items()}


class OllamaCopyRequest(RequestBody, kw_only=True):
    """``POST /api/copy``."""

    source: str
    destination: str

"""API keys and what each may do, checked before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.core.client import SHARED, Client
from quire.core.errors import ConfigError
from quire.server.http.http_errors import ApiError, path_of
from quire.system.regular_files import read_given_text

SCOPES = ("infer", "read", "admin")
#: What probes read without a key.
OPEN_PATHS = frozenset(
    {
        "/health", "/health/live", "/health/ready", "/health/progress", "/ping",
        "/v2/health/live", "/v2/health/ready",
    }
)  # fmt: skip
#: Of a WebSocket; what follows is the key.
SUBPROTOCOL = "openai-insecure-api-key."
_INFER = frozenset(
    {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
        "/tokenize", "/detokenize", "/invocations", "/", "/generate", "/generate_stream",
        "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/completion",
        "/completions", "/infill", "/apply-template", "/playground/render", "/v1/messages",
        "/v1/messages/count_tokens", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
        "/classify", "/v1/classify", "/pooling",
    }
)  # fmt: skip
#: Of one of Triton's models; others tell of it.
_INFER_OF_MODEL = ("/generate", "/generate_stream", "/infer")
_READ = frozenset(
    {
        "/metrics", "/load", "/version", "/openapi.json", "/models", "/v1/models", "/api/tags",
        "/api/version", "/api/show", "/api/ps", "/info", "/v2", "/props", "/slots",
    }
)  # fmt: skip
_KEY = re.compile(r"[!-~]+")
#: Of a key in a file that is not to hold the key itself; what follows is its SHA-256 in hex.
HASHED = "sha256:"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and what it may do; the key itself is not kept.

    Attributes:
        digest: SHA-256 of the key.
        scopes: Some of :data:`SCOPES`.
        client: The client that requests with this key belong to; clients share the engine fairly.
        requests_per_minute, tokens_per_minute: The key's limits; None for none.
    """

    digest: bytes = field(repr=False)
    scopes: frozenset[str]
    client: Client = SHARED
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @classmethod
    def create(cls, key: str, scopes: Iterable[str] = SCOPES, **settings: Any) -> ApiKey:
        """Make one from the key's text; the settings are those of :meth:`from_digest`."""
        return cls.from_digest(_digest(key.encode()), scopes, **settings)

    @classmethod
    def from_digest(
        cls,
        digest: bytes,
        scopes: Iterable[str] = SCOPES,
        *,
        name: str | None = None,
        weight: float = 1.0,
        rpm: int | None = None,
        tpm: int | None = None,
    ) -> ApiKey:
        """Make one from its SHA-256; its name is part of that when none is given."""
        client = Client(name or f"sha-{digest.hex()[:8]}", weight)
        return cls(digest, frozenset(scopes), client, rpm, tpm)


def read_key_file(path: str) -> list[ApiKey]:
    """Read lines ``key scope,scope [name=TEXT] [weight=NUMBER] [rpm=COUNT] [tpm=COUNT]``.

    ``sha256:HEX`` stands for the key with that hash. Lines that are empty or begin with ``#`` are
    skipped.

    Raises:
        ConfigError: The file cannot be read, or a line is wrong (named by number, not content).
    """
    try:
        lines = read_given_text(path).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise ConfigError(
            f"[config] --api-key-file {path} must be a readable text file; got {reason}."
        ) from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        key = _read_line(line)
        if key is None:
            raise ConfigError(
                f"[config] --api-key-file {path}, line {number}, must be a key of printable ASCII "
                f"or {HASHED} and 64 hex digits, a space, and some of {','.join(SCOPES)} with "
                "commas, then perhaps name=TEXT, weight=NUMBER above 0, rpm=COUNT and tpm=COUNT of "
                "at least 1; got something else."
            )
        keys.append(key)
    if not keys:
        raise ConfigError(f"[config] --api-key-file {path} must hold a key; got none.")
    names = Counter(key.client.client_id for key in keys)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"[config] --api-key-file {path} must give each key and name once; got {count} "
                f"lines of {name}."
            )
    return keys


def _read_line(line: str) -> ApiKey | None:
    """Return the key of a line, or None when it is wrong."""
    words = line.split()
    scopes = words[1].split(",") if len(words) >= 2 else []
    digest = _digest_of(words[0])
    if not scopes or not set(scopes) <= set(SCOPES) or digest is None:
        return None
    given: dict[str, Any] = {}
    for word in words[2:]:
        name, _, text = word.partition("=")
        read = _FIELDS.get(name)
        try:
            if read is None or name in given:
                return None
            given[name] = read(text)
        except ValueError:
            return None
    return ApiKey.from_digest(digest, scopes, **given)


def _digest_of(word: str) -> bytes | None:
    """Return the hash of a line's key, or None when it is neither a key nor a hash."""
    if word.startswith(HASHED):
        digits = word.removeprefix(HASHED)
        return bytes.fromhex(digits) if re.fullmatch("[0-9a-fA-F]{64}", digits) else None
    return _digest(word.encode()) if _KEY.fullmatch(word) else None


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.@-]{1,64}", text):
        raise ValueError
    return text


def _weight(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def client_of(key: ApiKey | None) -> Client:
    """Return the client that a request runs for, with a key or without."""
    return SHARED if key is None else key.client


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_FIELDS: dict[str, Callable[[str], Any]] = {
    "name": _name,
    "weight": _weight,
    "rpm": _count,
    "tpm": _count,
}


def may_operate(key: ApiKey | None) -> bool:
    """Return whether a request may load and unload models: with ``admin``, or where keys are none.

    Args:
        key: The request's, where keys are asked for.
    """
    return key is None or "admin" in key.scopes


def scope_of(path: str) -> str:
    """Return the scope a path needs that is not open; an unknown one needs the highest."""
    if path.startswith("/v2/models/"):
        return "infer" if path.endswith(_INFER_OF_MODEL) else "read"
    if path in _INFER or path.startswith("/v1/responses/"):
        return "infer"
    if path in _READ or path.startswith("/v1/models/"):
        return "read"
    return "admin"


class RequireKey:
    """ASGI middleware: every route that is not open needs ``Authorization: Bearer KEY``.

    The key is in ``scope["api_key"]`` from there on. Anthropic's clients send it as ``x-api-key``,
    which counts where there is no ``Authorization``. A WebSocket of a browser, which cannot send
    either header, names its key by OpenAI's subprotocol ``openai-insecure-api-key.KEY``.

    Args:
        app: The app that requests with a valid key are passed to.
        keys: The server's API keys.
        open_routes: Methods and paths that need no key, besides :data:`OPEN_PATHS`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[ApiKey],
        open_routes: Set[tuple[str, str]] = frozenset(),
    ) -> None:
        self.app = app
        self._keys = tuple(keys)
        self._open_routes = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] in ("http", "websocket"):
            path = path_of(scope)
            route = (scope.get("method", ""), path)
            if path not in OPEN_PATHS and route not in self._open_routes:
                try:
                    scope["api_key"] = self._check(_given(scope), scope_of(path))
                except ApiError as error:
                    await error.response(scope)(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def _check(self, given: bytes, needed: str) -> ApiKey:
        """Return the API key that matches ``given`` and has the scope ``needed``.

        Raises:
            ApiError: 401 when no key matches, 403 when the key does not have the scope.
        """
        scheme, _, text = given.strip().partition(b" ")
        digest, is_bearer = _digest(text.lstrip()), scheme.lower() == b"bearer"
        found = []
        for key in self._keys:
            # In constant time, and all of them, so that timing tells nothing of any key.
            if hmac.compare_digest(digest, key.digest) and is_bearer:
                found.append(key)
        if not found:
            raise ApiError(
                401,
                "Unauthorized: send an API key of this server as `Authorization: Bearer KEY` or "
                "`x-api-key: KEY`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        for key in found:
            if needed in key.scopes:
                return key
        raise ApiError(403, f"This API key does not have the scope `{needed}` that the path needs.")


def _given(scope: Scope) -> bytes:
    """Return what a request offers as its authorization."""
    headers = dict(reversed(scope["headers"]))  # the first of several
    if b"authorization" in headers:
        return bytes(headers[b"authorization"])
    if b"x-api-key" in headers:
        return b"Bearer " + bytes(headers[b"x-api-key"])
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(SUBPROTOCOL):
            key: str = protocol.removeprefix(SUBPROTOCOL)
            return b"Bearer " + key.encode()
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

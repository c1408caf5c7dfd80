"""API keys and what each may do, checked before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.core.errors import ConfigError
from quire.server.errors import ApiError

SCOPES = ("infer", "read", "admin")
#: What probes read without a key.
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health/progress", "/ping"})
_INFER = frozenset({"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"})
_READ = frozenset({"/metrics", "/version", "/v1/models"})
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its scopes; the key itself is not kept.

    Attributes:
        digest: SHA-256 of the key.
        scopes: Some of :data:`SCOPES`.
    """

    digest: bytes = field(repr=False)
    scopes: frozenset[str]

    @classmethod
    def create(cls, key: str, scopes: Iterable[str] = SCOPES) -> ApiKey:
        """Make one from the key's text."""
        return cls(_digest(key.encode()), frozenset(scopes))


def read_key_file(path: str) -> list[ApiKey]:
    """Read lines ``key scope,scope``; empty ones and those that begin with ``#`` are skipped.

    Raises:
        ConfigError: The file cannot be read, or a line is wrong (named by number, not content).
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise ConfigError(
            f"[config] --api-key-file {path} must be a readable text file; got {reason}."
        ) from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        scopes = words[1].split(",") if len(words) == 2 else []
        if not scopes or not set(scopes) <= set(SCOPES) or not _KEY.fullmatch(words[0]):
            raise ConfigError(
                f"[config] --api-key-file {path}, line {number}, must be a key of printable ASCII, "
                f"a space, and some of {','.join(SCOPES)} with commas; got something else."
            )
        keys.append(ApiKey.create(words[0], scopes))
    if not keys:
        raise ConfigError(f"[config] --api-key-file {path} must hold a key; got none.")
    return keys


def scope_of(path: str) -> str:
    """Return the scope a path needs that is not open; an unknown one needs the highest."""
    if path in _INFER:
        return "infer"
    if path in _READ or path.startswith("/v1/models/"):
        return "read"
    return "admin"


class RequireKey:
    """ASGI middleware: every path but ``open_paths`` needs ``Authorization: Bearer KEY``."""

    def __init__(
        self, app: ASGIApp, keys: Iterable[ApiKey], open_paths: Set[str] = OPEN_PATHS
    ) -> None:
        self.app = app
        self._keys = tuple(keys)
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            error = None
            if path not in self._open_paths:
                given = dict(scope["headers"]).get(b"authorization", b"")
                error = self._check(given, scope_of(path))
            if error is not None:
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _check(self, given: bytes, needed: str) -> ApiError | None:
        digest = _digest(given.removeprefix(b"Bearer "))
        known, allowed = False, False
        for key in self._keys:
            # In constant time, and all of them, so that timing tells nothing of any key.
            if hmac.compare_digest(digest, key.digest) and given.startswith(b"Bearer "):
                known = True
                allowed = allowed or needed in key.scopes
        if not known:
            return ApiError(
                401,
                "Unauthorized: send an API key of this server as `Authorization: Bearer KEY`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not allowed:
            return ApiError(403, f"This API key has not the scope `{needed}` that the path needs.")
        return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

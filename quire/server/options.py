"""Settings of the HTTP server, with defaults; the engine's are in :mod:`quire.core.config`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from quire.core.config import option
from quire.core.errors import ConfigError

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*:?")
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens, whom it answers and how; flags are generated from the fields."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 is every interface")
    port: int = option(8000, "TCP port; 0 takes a free one")
    uds: str | None = option(None, "listen on this Unix socket instead of TCP")
    root_path: str = option("", "path prefix that a proxy strips")
    api_key: str | None = option(None, "key clients must send; or set QUIRE_API_KEY")
    strict_params: bool = option(False, "answer 400 to unknown request fields")
    enable_force_include_usage: bool = option(False, "send usage on every chunk of every stream")
    metrics_prefix: str = option("quire", "first part of metric names (vllm fits its dashboards)")
    playground: bool = option(True, "serve a chat page at /")
    shutdown_timeout: float = option(30.0, "seconds that running requests get after SIGTERM")
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = option(
        "info", "what the HTTP server logs"
    )
    disable_uvicorn_access_log: bool = option(False, "log no line per request")

    def __post_init__(self) -> None:
        checks = (
            ("--port", 0 <= self.port <= 65535, "be in 0..65535", self.port),
            (
                "--shutdown-timeout",
                self.shutdown_timeout >= 0,
                "be at least 0",
                self.shutdown_timeout,
            ),
            (
                "--metrics-prefix",
                _PREFIX.fullmatch(self.metrics_prefix),
                "be a word",
                self.metrics_prefix,
            ),
            (
                "--root-path",
                not self.root_path or self.root_path[0] == "/",
                "start with /",
                self.root_path,
            ),
            (
                "--api-key",
                self.api_key is None or _KEY.fullmatch(self.api_key),
                "be printable ASCII without spaces",
                "something else",
            ),
        )
        for flag, holds, rule, value in checks:
            if not holds:
                raise ConfigError(f"[config] {flag} must {rule}; got {value}.")

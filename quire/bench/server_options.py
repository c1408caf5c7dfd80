"""Settings of all commands that put load on a server: its address, its requests, the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.core.errors import ConfigError
from quire.settings.option import option

#: A flag, whether its value can be, what it must be, and the value.
Check = tuple[str, bool, str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A server, what its requests have in common, and the result file."""

    backend: Literal["openai", "openai-chat", "vllm"] = option(
        "openai", "API: text completions (also vllm) or chat completions"
    )
    base_url: str | None = option(None, "http(s)://host:port, instead of --host and --port")
    host: str = option("127.0.0.1", "the server's address")
    port: int = option(8000, "the server's port")
    endpoint: str | None = option(None, "path; default: the backend's own")
    model: str | None = option(None, "name to ask for; default: the first the server lists")
    header: tuple[str, ...] = option((), "extra header K=V")
    api_key: str | None = option(None, "sent as a bearer token", env="QUIRE_API_KEY")
    insecure: bool = option(False, "do not check the TLS certificate")
    ready_check_timeout_sec: float = option(0.0, "seconds to wait for the server to answer")
    request_timeout: float = option(3600.0, "seconds after which a request has failed")
    seed: int = option(0, "seed of lengths, prompts and arrivals")
    ignore_eos: bool = option(True, "ask for exactly the output length")
    temperature: float = option(0.0, "temperature of sampling")
    extra_body: str | None = option(None, "JSON object of more request fields")
    save_result: bool = option(False, "write a JSON file")
    append_result: bool = option(False, "add a line to the file instead of replacing it")
    result_dir: str | None = option(None, "folder of the file")
    result_filename: str | None = option(
        None, "name of the file; default: from the load, model and time"
    )
    metadata: tuple[str, ...] = option((), "K=V to keep in the file")
    label: str | None = option(None, "name of the run in the file")
    disable_tqdm: bool = option(False, "show no progress")

    def __post_init__(self) -> None:
        wait = self.ready_check_timeout_sec
        check((
            ("--port", 0 < self.port <= 65535, "be in 1..65535", self.port),
            ("--request-timeout", self.request_timeout > 0, "be above 0", self.request_timeout),
            ("--temperature", 0 <= self.temperature < math.inf, "be at least 0", self.temperature),
            ("--ready-check-timeout-sec", wait >= 0, "be at least 0", wait),
            ("--endpoint", self.path().startswith("/"), "begin with /", self.endpoint),
        ))  # fmt: skip
        self.check_result("result_dir", "result_filename", "metadata", "label")
        pairs("--metadata", self.metadata)
        self.headers()

    def check_result(self, *names: str) -> None:
        """Refuse settings of a file that is not written."""
        if self.save_result or self.append_result:
            return
        for name in names:
            if getattr(self, name):
                raise ConfigError(
                    f"[bench] --{name.replace('_', '-')} must come with --save-result or "
                    f"--append-result; got it alone."
                )

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        found = pairs("--header", self.header)
        if self.api_key is not None:
            found["Authorization"] = f"Bearer {self.api_key}"
        return found

    def url(self) -> str:
        """Return the server's address without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")

    def path(self) -> str:
        """Return the path that generates."""
        chat = self.backend == "openai-chat"
        return self.endpoint or ("/v1/chat/completions" if chat else "/v1/completions")


def check(checks: Iterable[Check]) -> None:
    """Refuse the first value that breaks its rule.

    Raises:
        ConfigError: A value breaks its rule; its flag is named.
    """
    for flag, holds, rule, value in checks:
        if not holds:
            raise ConfigError(f"[bench] {flag} must {rule}; got {value}.")


def pairs(flag: str, values: Sequence[str]) -> dict[str, str]:
    """Return the ``K=V`` of a repeatable flag.

    Raises:
        ConfigError: A value is not of that form.
    """
    found = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not name or not equals or not value.isprintable():
            raise ConfigError(f"[bench] {flag} must be K=V; got {value!r}.")
        found[name] = content
    return found

"""Settings of the HTTP server, with defaults; the engine's are in :mod:`quire.settings.config`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from quire.core.errors import ConfigError
from quire.settings.option import options_of
from quire.system.log import LogFormat

_model, _scheduling = options_of("model"), options_of("scheduling")
_adapters, _parallel = options_of("adapters"), options_of("parallel")
_models, _server = options_of("models"), options_of("server")
_access, _observability = options_of("access"), options_of("observability")
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*:?")
_URL = re.compile(r"https?://[^/]")
#: Settings with a least value.
_LEAST = {
    "shutdown_timeout": 0,
    "stream_interval": 1,
    "max_num_queued_reqs": 1,
    "max_num_queued_tokens": 1,
    "max_stored_responses": 0,
    "max_stored_bytes": 0,
    "max_connections": 1,
    "write_timeout": 0,
    "keep_alive": -1,
    "load_wait": 0,
    "disaggregate_tokens": 1,
    "long_prompt_replicas": 0,
    "long_prompt_tokens": 1,
}
_ROLES = re.compile(r"([1-9][0-9]?)p([1-9][0-9]?)d")
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of the listener, of access and of answers; flags are generated from the fields."""

    host: str = _server("127.0.0.1", "address to listen on; 0.0.0.0 is all", common=True)
    port: int = _server(8000, "TCP port; 0 takes a free one", common=True)
    uds: str | None = _server(None, "Unix socket instead of TCP")
    root_path: str = _server("", "path prefix a proxy strips")
    api_key: tuple[str, ...] = _access(
        (), "key that clients must send", repr=False, env="QUIRE_API_KEY", common=True
    )
    api_key_file: str | None = _access(
        None, "file with lines `KEY|sha256:HEX infer,read,admin`", common=True
    )
    prefix_cache_isolation: Literal["none", "key"] = _access(
        "none", "share cached blocks among all requests (none), or those of a key"
    )
    allowed_origins: tuple[str, ...] = _access((), "web pages that may call (CORS); * is any")
    allowed_hosts: tuple[str, ...] = _access((), "names to answer to, besides localhost; * is any")
    ssl_certfile: str | None = _access(None, "TLS certificate chain (PEM)")
    ssl_keyfile: str | None = _access(None, "the certificate's private key (PEM)")
    ssl_ca_certs: str | None = _access(None, "authorities of clients' certificates")
    strict_params: bool = _server(False, "answer 400 to unknown request fields")
    enable_force_include_usage: bool = _server(False, "send usage on every chunk of every stream")
    stream_interval: int = _server(1, "tokens per event of a stream, at least")
    decoupled: bool = _server(True, "answers may be streamed")
    lora_modules: tuple[str, ...] = _adapters(
        (), "NAME=FOLDER of an adapter that requests may name as model", common=True
    )
    allow_runtime_lora_updating: bool = _adapters(
        False, "serve /v1/load_lora_adapter and /v1/unload_lora_adapter"
    )
    pooling: Literal["auto", "last", "mean", "cls", "pooler"] = _model(
        "auto", "hidden states that make an embedding; auto: the checkpoint's own"
    )
    classifier_from_token: tuple[str, ...] = _model(
        (), "token of a class (no, then yes) by whose probability texts are scored"
    )
    score_template: str | None = _model(
        None, "Jinja file, or qwen3-reranker: the prompt of messages of roles query and document"
    )
    load_on_demand: bool = _models(
        False, "load models when a request names them first", common=True
    )
    preload: tuple[str, ...] = _models((), "model to load at the start with --load-on-demand")
    keep_alive: float = _models(
        300.0, "idle seconds till a model loaded on demand is unloaded; -1: never", common=True
    )
    load_wait: float = _models(60.0, "seconds that a request waits for its model to load")
    disaggregate: str | None = _parallel(None, "engines for long prompts and for outputs: 1p1d")
    disaggregate_tokens: int = _parallel(512, "least tokens of a prompt that is computed apart")
    disaggregate_transport: Literal["auto", "shared", "tcp"] = _parallel(
        "auto",
        "transport of a prompt's KV blocks; auto: shared memory within a machine, TCP between "
        "machines",
    )
    long_prompt_replicas: int = _parallel(
        0, "number of a model's engines that take long prompts alone"
    )
    long_prompt_tokens: int = _parallel(4096, "least tokens of a long prompt")
    core_weight: tuple[str, ...] = _models(
        (), "NAME=WEIGHT: the model's part of the cores while other models compute; default 1"
    )
    metrics_prefix: str = _observability("quire", "first part of metric names (try vllm)")
    playground: bool = _server(True, "serve a chat page at /")
    enable_auto_tool_choice: bool = _server(True, "the model may choose tools")
    tool_call_parser: str = _server(
        "auto", "format of calls, a name of docs/tools.md; none: look for no calls"
    )
    reasoning_parser: str = _server(
        "auto", "marks of reasoning, a name of docs/tools.md; none: look for none"
    )
    exclude_tools_when_tool_choice_none: bool = _server(
        False, "leave tools out of the prompt when they may not be called"
    )
    max_stored_responses: int = _server(1000, "answers of /v1/responses kept for later turns")
    max_stored_bytes: int = _server(64 * 2**20, "bytes of memory for stored answers")
    max_num_queued_reqs: int = _scheduling(4096, "prompts that may wait; others: 429")
    max_num_queued_tokens: int | None = _scheduling(None, "most prompt tokens that wait")
    max_connections: int | None = _server(
        None, "most connections at once; default: what the OS allows"
    )
    write_timeout: float = _server(
        60.0, "seconds till a client that reads nothing is cut; 0: never"
    )
    ready_timeout: float = _observability(
        5.0, "seconds without a step till /health/ready is red, at least"
    )
    watchdog_timeout: float = _server(120.0, "seconds without a step that restart the engine")
    grammar_compilation_timeout: float = _server(10.0, "seconds that compiling a grammar may take")
    sse_keep_alive_interval: float = _server(15.0, "silent seconds to a stream's comment; 0: never")
    shutdown_timeout: float = _server(30.0, "seconds that running requests get after SIGTERM")
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = (
        _observability("info", "least level of the HTTP layer's log lines")
    )
    disable_uvicorn_access_log: bool = _observability(
        False, "log no line per request but generations"
    )
    disable_log_requests: bool = _observability(False, "log no line per generation")
    log_format: LogFormat = _observability("human", "format of log lines", common=True)
    otlp_traces_endpoint: str | None = _observability(
        None, "URL that traces are sent to (needs quire[otel])"
    )

    def __post_init__(self) -> None:
        lists = ("api_key", "allowed_origins", "allowed_hosts", "core_weight", "preload")
        for name in (*lists, "lora_modules"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
        for flag, holds, rule, value in self._checks():
            if not holds:
                raise ConfigError(f"[config] {flag} must {rule}; got {value}.")

    @property
    def num_engines(self) -> tuple[int, int] | None:
        """Engines for prompts and for outputs, where they are apart."""
        found = _ROLES.fullmatch(self.disaggregate or "")
        return None if found is None else (int(found[1]), int(found[2]))

    def _checks(self) -> Iterator[tuple[str, object, str, object]]:
        """Yield flag, whether its rule holds, the rule and the value."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            flag = f"--{name.replace('_', '-')}"
            fits = value is None or least <= value < math.inf
            yield flag, fits, f"be a number of at least {least}", value
        roles = self.disaggregate
        fits = roles is None or _ROLES.fullmatch(roles) is not None
        yield "--disaggregate", fits, "be numbers of engines such as 1p1d", roles
        yield from self._further_checks()

    def _further_checks(self) -> Iterator[tuple[str, object, str, object]]:
        """Yield the same of settings with rules of their own."""
        yield from (
            ("--port", 0 <= self.port <= 65535, "be in 0..65535", self.port),
            ("--uds", self.uds != "", "be a path", "nothing"),
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
                all(_KEY.fullmatch(key) for key in self.api_key),
                "be printable ASCII without spaces",
                "something else",
            ),
            ("--ready-timeout", self.ready_timeout > 0, "be above 0", self.ready_timeout),
            (
                "--watchdog-timeout",
                self.watchdog_timeout > 0,
                "be above 0",
                self.watchdog_timeout,
            ),
            (
                "--grammar-compilation-timeout",
                0 < self.grammar_compilation_timeout <= 86400,
                "be above 0 and at most a day",
                self.grammar_compilation_timeout,
            ),
            (
                "--sse-keep-alive-interval",
                0 <= self.sse_keep_alive_interval < math.inf,
                "be a number of seconds of at least 0",
                self.sse_keep_alive_interval,
            ),
            (
                "--ssl-certfile",
                self.ssl_certfile or not (self.ssl_keyfile or self.ssl_ca_certs),
                "be given with --ssl-keyfile and --ssl-ca-certs",
                self.ssl_certfile,
            ),
            (
                "--otlp-traces-endpoint",
                self.otlp_traces_endpoint is None or _URL.match(self.otlp_traces_endpoint),
                "be a URL such as http://localhost:4318/v1/traces",
                self.otlp_traces_endpoint,
            ),
        )

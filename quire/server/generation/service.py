"""What every endpoint needs to know: the engine, the names it is served under, the settings."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field, replace
from typing import Any

import quire
from quire.core.config import EngineConfig
from quire.llm.engine_client import EngineClient
from quire.models.hub import served_name
from quire.protocol.generation import StreamOptions
from quire.server.access.admission import Admission
from quire.server.access.authentication import ApiKey
from quire.server.access.rate_limit import RateLimits
from quire.server.generation.answer_parser import AnswerFormats
from quire.server.generation.response_store import ResponseStore
from quire.server.http.errors import ApiError
from quire.server.observability.metrics import ServerMetrics
from quire.server.observability.request_log import RequestLog
from quire.server.observability.request_record import Sink
from quire.server.observability.tracing import Tracing
from quire.server.options import ServerOptions

#: What TGI's clients send where a model's name is asked for: it serves one and looks at no name.
PLACEHOLDERS = ("dummy", "tgi")


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Whether usage closes a stream, and whether every chunk carries it."""

    at_end: bool
    on_every_chunk: bool


@dataclass(slots=True)
class Service:
    """One served model.

    Attributes:
        engine: Computes the answers.
        config: The engine's settings.
        options: The server's settings.
        keys: Who may call; nobody needs one when there are none.
        admission: Bounds the queue.
        rate_limits: Bound each key.
        tracing: Sends traces, where a collector is named.
        sinks: Get the record of each request that has ended.
        metrics: What ``/metrics`` shows.
        responses: Answers kept for later turns.
        formats: How the model's tool calls and reasoning are read.
        model_names: Names that requests may use; the first is shown in answers.
        created: When the service started, unix seconds.
        fingerprint: Same version and settings, same fingerprint.
    """

    engine: EngineClient
    config: EngineConfig
    options: ServerOptions
    keys: tuple[ApiKey, ...] = ()
    admission: Admission = field(init=False)
    rate_limits: RateLimits = field(init=False)
    sinks: tuple[Sink, ...] = field(init=False)
    tracing: Tracing | None = field(init=False, default=None)
    metrics: ServerMetrics = field(init=False)
    responses: ResponseStore = field(init=False)
    formats: AnswerFormats = field(init=False)
    model_names: tuple[str, ...] = field(init=False)
    created: int = field(init=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        model = self.config.model
        self.model_names = model.served_model_name or (served_name(model.model),)
        options = self.options
        self.responses = ResponseStore(options.max_stored_responses, options.max_stored_bytes)
        self.formats = AnswerFormats.resolve(options, self.engine.tokenizer)
        self.admission = Admission(options.max_num_queued_reqs, options.max_num_queued_tokens)
        self.rate_limits = RateLimits(self.admission.rejections)
        self.keys = (*self.keys, *map(ApiKey.create, options.api_key))
        # From here on only their hashes are kept.
        self.options = options = replace(options, api_key=())
        self.metrics = ServerMetrics(
            self.engine, self.config, options, self.model_names[0], self.admission.rejections
        )
        self.sinks = (self.metrics.http.add, RequestLog(options))
        if options.otlp_traces_endpoint is not None:
            self.tracing = Tracing(options.otlp_traces_endpoint)
            self.sinks += (self.tracing,)
        self.created = int(time.time())
        digest = hashlib.sha256(repr(self.config).encode()).hexdigest()[:8]
        self.fingerprint = f"quire-{quire.__version__}-{digest}"

    async def shutdown(self) -> None:
        """Stop the engine and send what is left of the traces. A second call does nothing."""
        await self.engine.shutdown()
        self.metrics.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
            self.tracing = None

    def check_serving(self) -> None:
        """Return when requests are taken.

        Raises:
            EngineDeadError: The engine has stopped, or is being restarted.
            ApiError: 503, the server is about to end.
        """
        self.engine.check_health()
        if self.admission.draining:
            raise ApiError(503, "The server is shutting down.")

    def resolve_model(self, name: str | None) -> str:
        """Return the served name a request means; none, or one of no model, means the first.

        Where no name was given, the model argument means it too, as in vLLM.

        Raises:
            ApiError: 404, no such model.
        """
        model = self.config.model
        is_argument = not model.served_model_name and name == model.model
        is_placeholder = name in PLACEHOLDERS and name not in self.model_names
        if not name or is_argument or is_placeholder:
            return self.model_names[0]
        if name not in self.model_names:
            raise ApiError(404, f"The model `{name}` does not exist.", param="model")
        return name

    def output_limit(self, asked: int | None, num_prompt_tokens: int) -> int | None:
        """Return a request's limit of output tokens, else the model's own as far as it fits."""
        default: int | None = self.engine.default_sampling_params.get("max_tokens")
        if asked is not None or default is None:
            return asked
        return min(default, max(1, self.engine.max_model_len - num_prompt_tokens))

    def identity(self, response_id: str, kind: str, model: str) -> dict[str, Any]:
        """Return what an answer and each of its chunks says of itself; ``kind`` is ``object``."""
        return {
            "id": response_id,
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": self.fingerprint,
        }

    def usage_options(self, asked: StreamOptions | None) -> UsageOptions:
        """Return when a stream carries usage; ``--enable-force-include-usage`` means always."""
        forced = self.options.enable_force_include_usage
        at_end = forced or bool(asked and asked.include_usage)
        on_every_chunk = forced or bool(at_end and asked and asked.continuous_usage_stats)
        return UsageOptions(at_end, on_every_chunk)

"""Things that the models of a server share: settings, keys, limits, kept answers, metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from quire.server.access.authentication import ApiKey
from quire.server.access.rate_limit import RateLimits
from quire.server.generation.pulls import Pulls
from quire.server.generation.response_store import ResponseStore
from quire.server.observability.metrics_endpoint import ServerMetrics
from quire.server.observability.request_log import RequestLog
from quire.server.observability.request_record import Sink
from quire.server.observability.tracing import Tracing
from quire.server.server_options import ServerOptions
from quire.text.tokenizers import tokenizer_process


class Shared:
    """The shared things of one server.

    Args:
        options: The server's settings.
        keys: API keys besides those among the settings.

    Attributes:
        options: The settings, without keys: from here on only their hashes are kept.
        keys: The server's API keys; requests need none when it is empty.
        rejections: Counts of requests that were refused on arrival, by reason.
        rate_limits: The limits of each key.
        responses: Answers kept for later turns.
        pulls: Models that are being fetched.
        handing: The lock of a request that hands many prompts to an engine, a few at a time.
        metrics: The metrics of ``/metrics``.
        tracing: The sender of traces, where a collector is named.
        sinks: Receivers of the record of each request that has ended.
    """

    def __init__(self, options: ServerOptions, keys: Sequence[ApiKey] = ()) -> None:
        self.keys = (*keys, *map(ApiKey.create, options.api_key))
        self.options = options = replace(options, api_key=())
        self.rejections: Counter[str] = Counter()
        self.rate_limits = RateLimits(self.rejections)
        self.responses = ResponseStore(options.max_stored_responses, options.max_stored_bytes)
        self.metrics = ServerMetrics(options.metrics_prefix, self.rejections)
        self.pulls = Pulls()
        self.handing = asyncio.Lock()
        self.tracing: Tracing | None = None
        self.sinks: tuple[Sink, ...] = (self.metrics.http.add, RequestLog(options))
        if options.otlp_traces_endpoint is not None:
            self.tracing = Tracing(options.otlp_traces_endpoint)
            self.sinks += (self.tracing,)

    async def shutdown(self) -> None:
        """Kill the tokenizer processes and send the last traces. A second call does nothing."""
        tokenizer_process.kill_running()
        self.metrics.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
            self.tracing = None

"""What the models of a server have in common: settings, keys, limits, kept answers, books."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from quire.server.access.authentication import ApiKey
from quire.server.access.rate_limit import RateLimits
from quire.server.generation.pulls import Pulls
from quire.server.generation.response_store import ResponseStore
from quire.server.observability.metrics import ServerMetrics
from quire.server.observability.request_log import RequestLog
from quire.server.observability.request_record import Sink
from quire.server.observability.tracing import Tracing
from quire.server.options import ServerOptions
from quire.text import tokenizer_process


class Shared:
    """Of one server.

    Args:
        options: Its settings.
        keys: Who may call, besides the keys among the settings.

    Attributes:
        options: The settings, without keys: from here on only their hashes are kept.
        keys: Who may call; nobody needs one when there are none.
        rejections: Requests refused at the door, by reason.
        rate_limits: Bound each key.
        responses: Answers kept for later turns.
        pulls: Models that are being fetched.
        handing: Held by a request that hands many prompts to an engine, a few at a time.
        metrics: What ``/metrics`` shows.
        tracing: Sends traces, where a collector is named.
        sinks: Get the record of each request that has ended.
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
        """End what reads texts, and send what is left of the traces. A second call does nothing."""
        tokenizer_process.kill_running()
        self.metrics.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
            self.tracing = None

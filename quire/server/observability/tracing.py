"""OpenTelemetry traces of requests, sent over OTLP/HTTP; the packages are the extra ``otel``.

Spans are made when a request has ended, from times that were noted anyway: tracing costs nothing
while tokens are made.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError
from quire.server.observability.request_record import Generation, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: What a collector gets that does not answer, also at the server's end.
EXPORT_SECONDS = 5


def check_available() -> None:
    """Return when traces can be sent.

    Raises:
        ConfigError: The packages are missing.
    """
    try:
        found = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto")
    except ModuleNotFoundError:
        found = None
    if not found:
        raise ConfigError(
            "[config] --otlp-traces-endpoint needs OpenTelemetry's packages; they are not "
            "installed. Install quire[otel]."
        )


class Tracing:
    """Turns the record of a generation request into spans.

    A span for the HTTP request, child of the caller's (W3C ``traceparent``); in it one
    ``llm_request`` per prompt, with vLLM's attributes; in that ``queue``, ``prefill``, ``decode``.

    Args:
        endpoint: URL of the collector, such as ``http://localhost:4318/v1/traces``.

    Raises:
        ConfigError: The packages are missing.
    """

    def __init__(self, endpoint: str) -> None:
        check_available()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = Resource({"service.name": "quire"})
        self._provider = TracerProvider(resource=name.merge(OTELResourceDetector().detect()))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("quire")
        self._propagator = TraceContextTextMapPropagator()
        self._offset = 0

    def __call__(self, record: RequestRecord) -> None:
        """Send the spans of a request that has ended, if it generated anything."""
        if not record.generations:
            return
        from opentelemetry.trace import SpanKind

        # Once for all its spans: between two readings of two clocks a process may lose its turn.
        self._offset = time.time_ns() - time.monotonic_ns()

        span = self._span(
            f"{record.method} {record.handler}",
            self._caller(record),
            (record.started, record.ended),
            {
                "http.request.method": record.method,
                "http.route": record.handler,
                "url.path": record.path,
                "http.response.status_code": record.status,
                "quire.request_id": record.request_id,
            },
            kind=SpanKind.SERVER,
            failed=record.status >= 500,
        )
        for generation in record.generations:
            self._add_generation(span, record, generation)

    def shutdown(self) -> None:
        """Send what is left, within bounds."""
        self._provider.shutdown()

    def _caller(self, record: RequestRecord) -> Any:
        given = (("traceparent", record.traceparent), ("tracestate", record.tracestate))
        return self._propagator.extract({name: value for name, value in given if value})

    def _add_generation(self, parent: Span, record: RequestRecord, item: Generation) -> None:
        from opentelemetry.trace import set_span_in_context

        params, times = item.params, item.times
        attributes: dict[str, Any] = {
            "gen_ai.request.id": item.engine_id,
            "gen_ai.response.model": record.model,
            "gen_ai.request.n": params.n,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.usage.completion_tokens": item.num_output_tokens,
            "gen_ai.response.finish_reasons": item.finish_reasons,
        }
        context = set_span_in_context(parent)
        whole = (record.started, record.ended)
        if times is None:
            self._span("llm_request", context, whole, attributes)
            return
        attributes["gen_ai.usage.prompt_tokens"] = item.num_prompt_tokens
        attributes["gen_ai.usage.cached_tokens"] = item.num_cached_tokens
        stages = []
        if times.first_token_time:
            arrival, scheduled = times.arrival_time, times.first_scheduled_time
            first, last = times.first_token_time, times.last_token_time
            whole = (arrival, last)
            stages = [
                ("queue", "time_in_queue", arrival, scheduled),
                ("prefill", "time_in_model_prefill", scheduled, first),
                ("decode", "time_in_model_decode", first, last),
            ]
            attributes["gen_ai.latency.e2e"] = last - arrival
            attributes["gen_ai.latency.time_to_first_token"] = first - arrival
            attributes["gen_ai.latency.time_in_model_inference"] = last - scheduled
        for _, name, start, end in stages:
            attributes[f"gen_ai.latency.{name}"] = end - start
        span = self._span("llm_request", context, whole, attributes, failed=item.failed)
        inside = set_span_in_context(span)
        for stage, _, start, end in stages:
            self._span(stage, inside, (start, end), {})

    def _span(
        self,
        name: str,
        context: Any,
        times: tuple[float, float],
        attributes: dict[str, Any],
        *,
        kind: Any = None,
        failed: bool = False,
    ) -> Span:
        """Make a span that has ended; ``times`` are on the monotonic clock."""
        from opentelemetry.trace import SpanKind, StatusCode

        start, end = (int(moment * 1e9) + self._offset for moment in times)
        span = self._tracer.start_span(
            name,
            context,
            kind or SpanKind.INTERNAL,
            {key: value for key, value in attributes.items() if value is not None},
            start_time=start,
        )
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(end)
        return span

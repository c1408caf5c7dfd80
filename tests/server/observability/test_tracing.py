"""Traces, received over OTLP/HTTP by a collector of our own."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from quire.core.errors import ConfigError
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.llm.async_llm import AsyncLLM
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.observability.request_record import Generation, RequestRecord
from quire.server.observability.tracing import Tracing
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        super().__init__(("127.0.0.1", 0), Receiver)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces"
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            for attribute in part.resource.attributes:
                if attribute.key == "service.name":
                    self.server.services.add(attribute.value.string_value)
            for scope in part.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def attributes(span: Span) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        found[item.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


def test_a_request_is_a_tree_of_spans_in_the_caller_s_trace(trace):
    spans, answer = trace
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {
        "POST /v1/completions", "llm_request", "queue", "prefill", "decode"
    }  # fmt: skip
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    root, request = by_name["POST /v1/completions"], by_name["llm_request"]
    assert root.parent_span_id.hex() == PARENT and root.trace_state == "a=b"
    assert request.parent_span_id == root.span_id
    for name in ("queue", "prefill", "decode"):
        assert by_name[name].parent_span_id == request.span_id
    # The parts follow one another and make the whole.
    moments = [
        (by_name[n].start_time_unix_nano, by_name[n].end_time_unix_nano)
        for n in ("queue", "prefill", "decode")
    ]
    assert all(abs(a[1] - b[0]) < 1000 for a, b in zip(moments, moments[1:], strict=False))
    assert abs(moments[0][0] - request.start_time_unix_nano) < 1000
    assert abs(moments[2][1] - request.end_time_unix_nano) < 1000
    assert root.start_time_unix_nano <= request.start_time_unix_nano
    seen = attributes(request)
    usage = answer["usage"]
    assert seen["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert seen["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 5
    assert seen["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes(root)["http.response.status_code"] == 200
    parts = [seen[f"gen_ai.latency.time_in_{n}"] for n in ("queue", "model_prefill")]
    assert sum(parts) == pytest.approx(seen["gen_ai.latency.time_to_first_token"])


@pytest.fixture
def trace(folder, device, collector):
    """Return the spans of one request to a real engine, and its answer."""
    keywords = {"device": device, "memory": 64 * 2**20, "max_num_seqs": 4, "threads": 1}
    config = EngineConfig.from_keywords(model=str(folder), **keywords)
    settings = {"port": 0, "uvicorn_log_level": "warning", "otlp_traces_endpoint": collector.url}
    service = Service(AsyncLLM.from_config(config), config, Shared(ServerOptions(**settings)))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"}
        answer = client.post("/v1/completions", json=body, headers=headers).json()
        client.get("/v1/models", headers=headers)  # generates nothing, so it is not traced
    assert collector.services == {"quire"}
    return collector.spans, answer


def test_a_turn_lost_between_two_clocks_moves_a_whole_trace(collector, monkeypatch):
    """Each span read both clocks, and one that lost its turn there stood apart from its parts."""
    late = itertools.count()
    monotonic = time.monotonic_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic() + 10**9 * next(late))
    tracing = Tracing(collector.url)
    record = RequestRecord("1", "POST", "/v1/completions", None)
    times = RequestMetrics(1.0, 2.0, 3.0, 4.0)
    record.generations.append(Generation("1", SamplingParams(max_tokens=2), times))
    tracing(record)
    tracing.shutdown()
    by_name = {span.name: span for span in collector.spans}
    for one, other in (("queue", "prefill"), ("prefill", "decode")):
        gap = by_name[other].start_time_unix_nano - by_name[one].end_time_unix_nano
        assert abs(gap) < 1000


def test_endings_without_tokens_are_traced_too(engine, collector):
    settings = {"port": 0, "uvicorn_log_level": "warning", "otlp_traces_endpoint": collector.url}
    service = Service(engine, EngineConfig(), Shared(ServerOptions(**settings)))
    engine.fail_after = 0
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert client.post("/v1/completions", json={"prompt": "ab", "n": 2}).status_code == 500
    root, request = sorted(collector.spans, key=lambda span: span.name)
    assert attributes(root)["http.response.status_code"] == 500
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes(request)["gen_ai.response.finish_reasons"] == ["abort", "abort"]


def test_a_missing_collector_harms_nothing(serve):
    client = serve(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_missing_packages_are_named(monkeypatch):
    for name in ("opentelemetry", "opentelemetry.sdk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ConfigError, match=r"Install quire\[otel\]"):
        Tracing("http://127.0.0.1:1/v1/traces")


def test_an_endpoint_is_a_url():
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be a URL"):
        ServerOptions(otlp_traces_endpoint="localhost:4317")

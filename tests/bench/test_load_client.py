"""What counts as output on the wire, how failures are told, and answers cut anywhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.bench_options import BenchOptions
from quire.bench.load_client import StreamReader
from quire.bench.load_run import run_benchmark

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


def event(data: object) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def text(words: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"text": words, "finish_reason": reason}]})


def delta(reason: str | None = None, **fields: object) -> bytes:
    return event({"choices": [{"delta": fields, "finish_reason": reason}]})


DONE = event(b"[DONE]")
STREAM = (
    text("Grü") + text("") + text("ße") + text("", "length")
    + event({"choices": [], "usage": USAGE}) + DONE
)  # fmt: skip


@given(st.lists(st.integers(0, len(STREAM))), st.booleans())
def test_a_stream_reads_the_same_however_it_is_cut(cuts, windows):
    stream = STREAM.replace(b"\n\n", b"\r\n\r\n") if windows else STREAM
    reader, places = StreamReader(), sorted({0, *cuts, len(stream)})
    for now, (begin, end) in enumerate(zip(places, places[1:], strict=False)):
        reader.feed(stream[begin:end], float(now))
    assert "".join(reader.words) == "Grüße" and len(reader.times) == 3
    assert reader.times == sorted(reader.times)
    assert reader.finished and reader.error is None
    assert reader.usage is not None and reader.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([delta(role="assistant", content=""), delta(content="a"), delta("stop")], 1),
        ([delta(role="assistant", content="a"), delta("stop", content="b")], 2),
        ([delta(role="assistant"), delta(reasoning_content="x"), delta(content="y")], 2),
        ([delta(tool_calls=[{"index": 0}]), delta("tool_calls")], 1),
        ([event({"choices": [{"text": "", "token_ids": [7], "finish_reason": "length"}]})], 1),
        ([text("", "stop")], 0),
    ],
)
def test_only_chunks_with_a_token_are_output(events, count):
    reader = StreamReader()
    reader.feed(b"".join(events), 1.0)
    assert len(reader.times) == count


def one(url: str, **options: object):
    """Send one request and return its record and the metrics."""
    given = {"num_prompts": 1, "input_len": 4, "output_len": 3, **options}
    run = asyncio.run(run_benchmark(BenchOptions(base_url=url, **given)))
    return run.records[0], run.metrics


def test_pauses_of_the_server_are_seen(script, monkeypatch):
    """A pause begins once the client has read what came before: else both may come at once."""
    pieces = [HEAD, chunk(text("a")), chunk(text("b")), chunk(text("c", "length")), END]
    server, read = script(pieces, pause=0.05), threading.Semaphore(0)
    feed = StreamReader.feed

    def feed_and_tell(self: StreamReader, data: bytes, now: float) -> None:
        feed(self, data, now)
        read.release()

    def before(number: int) -> None:
        if number in (2, 3):
            assert read.acquire(timeout=60)
            server.over.wait(server.pause)

    monkeypatch.setattr(StreamReader, "feed", feed_and_tell)
    server.before = before
    record, metrics = one(server.url, header=("X-Team=a",), extra_body='{"top_k": 1}')
    assert record.error is None and record.text == "abc"
    assert len(record.times) == 3 and record.num_output_tokens == 3
    assert not record.counted_by_server
    assert metrics.distributions["itl"].mean >= 40
    assert metrics.distributions["ttft"].mean >= 40
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert b"X-Team: a\r\n" in head and head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    sent = json.loads(body)
    assert sent["model"] == "scripted" and sent["top_k"] == 1 and sent["max_tokens"] == 3
    assert sent["stream_options"] == {"include_usage": True} and sent["ignore_eos"] is True
    assert len(sent["prompt"]) == 4


def test_a_body_without_length_ends_with_the_connection(script):
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    record, _ = one(script([head, text("a", "length") + DONE]).url)
    assert record.error is None and record.text == "a"


REFUSED = b'{"error":{"message":"queue is full","code":429}}'
FAILURES = {
    "refused": ([b"HTTP/1.1 429 X\r\nContent-Length: %d\r\n\r\n" % len(REFUSED), REFUSED],
                "HTTP 429: queue is full"),
    "no JSON": ([b"HTTP/1.1 502 X\r\nContent-Length: 3\r\n\r\n", b"bad"], "HTTP 502: bad"),
    "error event": ([HEAD, chunk(text("a")), chunk(event({"error": {"message": "engine died"}})),
                     chunk(DONE), END], "engine died"),
    "cut": ([HEAD, chunk(text("a"))], "closed the connection"),
    "no ending": ([HEAD, chunk(text("a")), END], "without an ending"),
    "no output": ([HEAD, chunk(DONE), END], "without output"),
    "no events": ([HEAD, chunk(event(b"{")), chunk(DONE), END], "no JSON"),
    "no UTF-8": ([HEAD, chunk(b'data: {"error": "\xff"}\n\n'), chunk(DONE), END], "no JSON"),
    "no UTF-8 refusal": ([b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\n", b'"\xff"'], "HTTP 500: "),
    "negative usage": ([HEAD, chunk(text("a")), chunk(event({"usage": {"completion_tokens": -5}})),
                        chunk(DONE), END], ">= 0"),
    "no HTTP": ([b"hello\r\n\r\n"], "not HTTP"),
    "nothing": ([], "closed the connection"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_counted_with_their_reason(script, name):
    pieces, said = FAILURES[name]
    record, metrics = one(script(pieces).url)
    assert record.error is not None and said in record.error
    assert (metrics.completed, metrics.failed) == (0, 1)
    assert metrics.total_output_tokens == 0


def test_a_silent_server_fails_at_the_timeout(script):
    server = script([HEAD, chunk(text("a"))], pause=60)
    record, _ = one(server.url, request_timeout=0.3)
    assert record.error is not None and "--request-timeout" in record.error


def test_concurrency_is_bounded_and_waiting_is_no_latency(script):
    pieces = [HEAD, chunk(text("a")), chunk(text("b", "length")), END]
    server = script(pieces)
    options = BenchOptions(
        base_url=server.url, num_prompts=4, max_concurrency=1, output_len=2, input_len=4
    )
    start = time.perf_counter()
    run = asyncio.run(run_benchmark(options))
    taken = time.perf_counter() - start
    assert run.metrics.completed == 4 and run.metrics.max_concurrent_requests == 1
    waits = [record.sent - record.due for record in run.records]
    assert waits == sorted(waits) and waits[-1] > waits[0]
    assert sum(record.times[-1] - record.sent for record in run.records) <= taken

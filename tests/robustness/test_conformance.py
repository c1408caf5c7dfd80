"""Quire plays every golden transcript; a server that is wrong somewhere is found out."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.servers import start_server
from tools.conformance import response_rules, rules
from tools.conformance.runner import RESPONSES, Runner
from tools.conformance.transcript import fill_in, load
from tools.serve_process import ROOT

KEY = "conformance-key"


@pytest.fixture(scope="module")
def served(device):
    limits = ["--memory", "64MiB", "--threads", "1", "--max-num-queued-reqs", "4"]
    limits += ["--max-num-seqs", "4"]
    with start_server(["--device", device, *limits], QUIRE_API_KEY=KEY) as server:
        yield server.wait_ready()
        assert server.end() == 0


@pytest.fixture(scope="module")
def runner(served):
    with Runner(served, KEY) as made:
        yield made


@pytest.mark.parametrize("transcript", load(), ids=lambda t: f"{t.area}: {t.name}")
def test_quire_answers_as_the_transcript_says(runner, transcript):
    (verdict,) = runner.run([transcript])
    assert verdict.outcome != "wrong", verdict.reason
    assert verdict.outcome == "ok", verdict.reason


def test_every_rule_that_a_transcript_names_exists():
    """A rule of another kind of answer would be passed over."""
    for transcript in load():
        known = rules.OF_ANSWERS | rules.OF_EVENTS
        if transcript.path.startswith(RESPONSES):
            known = response_rules.OF_RESPONSES
        assert set(transcript.rules) <= set(known), transcript.name


def test_the_command(served):
    command = [ROOT / "scripts" / "conformance", "--base-url", served, "--api-key", KEY]
    done = subprocess.run(
        [*command, "--area", "service"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout


#: Its schema is that of a response, and it fits no request.
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "error": None,
    "incomplete_details": None, "instructions": "x", "metadata": {}, "model": "m", "output": [
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "get_weather",
         "arguments": "{}", "status": "completed"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "a", "annotations": []}]},
    ],
    "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto", "tools": [],
    "top_p": None, "usage": {
        "input_tokens": 1, "output_tokens": 1, "total_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}  # fmt: skip


class Careless(BaseHTTPRequestHandler):
    """Answers everything with the same chat, whole, and errors with plain text.

    It takes every request for a response, and forgets and orders nothing.
    """

    def do_GET(self):
        value = {"object": "list", "data": [{"id": "m"}]}
        self._answer(200, RESPONSE | {"id": "resp_2"} if RESPONSES in self.path else value)

    def do_DELETE(self):
        self._answer(200, {"deleted": True})

    def _answer_response(self, body):
        if not body.get("stream"):
            self._answer(200, RESPONSE)
            return
        events = [{"type": "response.created"}, {"type": "response.completed"}]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for number, event in enumerate(events):
            data = json.dumps(event | {"response": RESPONSE, "sequence_number": number})
            self.wfile.write(f"event: {event['type']}\ndata: {data}\n\n".encode())

    def do_POST(self):
        try:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        except ValueError:
            self.close_connection = True
            return
        if body.get("n") == 0:
            self.send_error(400)
            return
        if self.path == RESPONSES:
            self._answer_response(body)
            return
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 3}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
        self._answer(
            200, answer | {"choices": [choice | {"finish_reason": "stop"}], "usage": usage}
        )

    def _answer(self, status, value):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def verdicts_on_careless(area_or_path):
    """Return what a careless server is told, by transcript."""
    mine = [t for t in load() if area_or_path in (t.area, t.path) and t.burst == 1]
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with Runner(f"http://127.0.0.1:{server.server_port}") as runner:
                return list(runner.run(mine))
        finally:
            server.shutdown()
            thread.join()


def test_a_careless_server_is_found_out():
    found = verdicts_on_careless("/v1/chat/completions")
    wrong = {verdict.transcript.name: verdict.reason for verdict in found}
    assert "usage_adds_up" in wrong["whole answer"]
    assert "choices" in wrong["n"]
    assert "a stream of type" in wrong["stream"]
    assert "an error of type" in wrong["n of 0"]
    assert "no answer that can be read" in wrong["broken JSON"]


@pytest.mark.parametrize(
    ("rule", "events", "argument"),
    [
        ("one_ending", [{"choices": [{"index": 0, "finish_reason": None}]}], True),
        ("one_ending", [{"choices": [{"index": 0, "finish_reason": "stop"}]}] * 2, True),
        ("role_first", [{"choices": [{"index": 0, "delta": {"content": "x"}}]}], True),
        ("usage_at_end", [{"choices": [], "usage": None}], True),
        ("no_usage", [{"choices": []}], True),
    ],
)
def test_rules_of_streams_find_what_is_wrong(rule, events, argument):
    assert rules.OF_EVENTS[rule](events, argument)


@pytest.mark.parametrize(
    ("rule", "answer", "argument"),
    [
        ("json_text", {"choices": [{"text": '{"a": 1'}]}, {"type": "object"}),
        ("json_text", {"choices": [{"text": "[]"}]}, {"type": "object"}),
        ("matches", {"choices": [{"text": "yes!"}]}, "yes"),
        ("tool_called", {"choices": [{"message": {}, "finish_reason": "stop"}]}, {}),
        ("completion_tokens", {"usage": {"completion_tokens": 3}}, 4),
        ("finish_reason", {"choices": [{"finish_reason": "stop"}]}, "length"),
    ],
)
def test_rules_of_answers_find_what_is_wrong(rule, answer, argument):
    assert rules.OF_ANSWERS[rule](answer, argument)


def test_every_transcript_of_responses_finds_a_careless_server_out():
    found = verdicts_on_careless("responses")
    assert len(found) >= 30
    missed = [verdict.transcript.name for verdict in found if verdict.outcome != "wrong"]
    assert missed == []
    reasons = {verdict.transcript.name: verdict.reason for verdict in found}
    assert "it begins with" in reasons["streamed: the events in their order"]
    assert reasons["a kept response"] == "is_the_same_as: another answer than before"
    assert "status 200" in reasons["an unknown previous_response_id"]
    assert "details {}" in reasons["cut by max_output_tokens"]


#: Transcripts whose streams are looked at closely.
STREAMS = ("streamed: the events in their order", "tool_choice required, streamed")


@pytest.fixture(scope="module")
def streams(runner):
    """The events that a right server sends, by transcript."""
    headers = {"authorization": f"Bearer {KEY}"}
    found = {}
    for transcript in load():
        if transcript.area == "responses" and transcript.name in STREAMS:
            body = transcript.body | {"model": runner.model}
            url = f"{runner.url}{RESPONSES}"
            text = httpx2.post(url, json=body, headers=headers, timeout=60).text
            lines = [line for line in text.splitlines() if line.startswith("data: {")]
            found[transcript.name] = [json.loads(line.removeprefix("data: ")) for line in lines]
    return found


def kind(events, part):
    """Return the index of the first event whose type has ``part`` in it."""
    return next(i for i, event in enumerate(events) if part in event["type"])


def numbered(events):
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def without(part):
    return lambda events: numbered([e for e in events if part not in e["type"]])


def swapped(first, second):
    def change(events):
        i, j = kind(events, first), kind(events, second)
        events[i], events[j] = events[j], events[i]
        return numbered(events)

    return change


def changed(part, **fields):
    def change(events):
        events[kind(events, part)] |= fields
        return events

    return change


def other_output(events):
    events[-1]["response"]["output"][0]["id"] = "other"
    return events


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (without("created"), "it begins with"),
        (without("in_progress"), "it begins with"),
        (lambda events: events[:-1], "it ends with"),
        (without("output_item.added"), "item 0"),
        (without("output_item.done"), "item 0"),
        (without(".delta"), "item 0"),
        (swapped("output_item.added", ".delta"), "item 0"),
        (swapped(".delta", "output_item.done"), "item 0"),
        (changed(".delta", delta="?"), "deltas"),
        (changed(".delta", item_id="other"), "ids"),
        (changed(".delta", output_index=1), "items begin"),
        (changed("in_progress", sequence_number=0), "sequence numbers"),
        (lambda events: numbered([*events, events[-1]]), "completed between"),
        (other_output, "item 0"),
    ],
)
@pytest.mark.parametrize("name", STREAMS)
def test_the_order_of_events_is_judged(streams, name, change, part):
    events = copy.deepcopy(streams[name])
    assert response_rules.order(events) is None
    assert part in response_rules.order(change(events))


def test_openais_types_take_what_the_schemas_take(streams):
    """The schemas were written from them."""
    events = TypeAdapter(ResponseStreamEvent)
    for event in itertools.chain(*copy.deepcopy(streams).values()):
        response = event.get("response", {})
        if response.get("usage"):  # newer than the servers: what was written to a cache
            response["usage"]["input_tokens_details"]["cache_write_tokens"] = 0
        events.validate_python(event)


def test_places_in_earlier_answers():
    answers = [{"id": "a", "output": [{"n": 1}]}, {"id": "b"}]
    value = {"x": ["$1.output.0", "of $2.id and $1.id", 3], "y": "$1.output.0.n", "z": "$5 off"}
    with pytest.raises(LookupError):
        fill_in(value, answers)
    del value["z"]
    assert fill_in(value, answers) == {"x": [{"n": 1}, "of b and a", 3], "y": 1}

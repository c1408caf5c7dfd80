"""Quire plays every golden transcript; a server that is wrong somewhere is found out."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tools.conformance import rules
from tools.conformance.runner import Runner
from tools.conformance.transcript import load
from tools.serve_process import ROOT, ServeProcess

KEY = "conformance-key"


@pytest.fixture(scope="module")
def served(device):
    limits = ["--memory", "64MiB", "--threads", "1", "--max-num-queued-reqs", "4"]
    limits += ["--max-num-seqs", "4"]
    limits += ["--chat-template", str(ROOT / "tests" / "clients" / "tools.jinja")]
    with ServeProcess(["--device", device, *limits], QUIRE_API_KEY=KEY) as server:
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
    if transcript.area != "responses":  # nothing else may be refused
        assert verdict.outcome == "ok", verdict.reason


def test_the_command(served):
    command = [ROOT / "scripts" / "conformance", "--base-url", served, "--api-key", KEY]
    done = subprocess.run(
        [*command, "--area", "service"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout


class Careless(BaseHTTPRequestHandler):
    """Answers everything with the same chat, whole, and errors with plain text."""

    def do_GET(self):
        self._answer(200, {"object": "list", "data": [{"id": "m"}]})

    def do_POST(self):
        try:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        except ValueError:
            self.close_connection = True
            return
        if body.get("n") == 0:
            self.send_error(400)
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


def test_a_careless_server_is_found_out():
    with ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            mine = [t for t in load() if t.path == "/v1/chat/completions" and t.burst == 1]
            with Runner(f"http://127.0.0.1:{server.server_port}") as runner:
                found = list(runner.run(mine))
        finally:
            server.shutdown()
            thread.join()
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

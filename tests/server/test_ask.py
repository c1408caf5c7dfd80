"""``quire ask`` against servers, and the loop over lines that people write themselves."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time

import pytest

from tests.bench.conftest import Script
from tests.commands import COMMAND, environment, fork_quire
from tests.preforked import Preforked

HELLO = [{"role": "user", "content": "Hi"}]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def ask(*args: str, key: str = "", stdin: str = "") -> tuple[int, str, str]:
    """Run the command; return exit code, stdout and stderr."""
    # In a process of its own: the servers of the tests log to this one's stderr.
    result = fork_quire("ask", *args, stdin=stdin, PYTHONUTF8="1", QUIRE_API_KEY=key)
    return result.returncode, result.stdout, result.stderr


@pytest.fixture
def script():
    """Start servers that send the same bytes whatever they are asked."""
    started: list[Script] = []

    def start(*pieces: bytes) -> Script:
        started.append(Script([HEAD, *(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces)], pause=0))
        return started[-1]

    yield start
    for server in started:
        server.listener.close()


def begin(url) -> Preforked:
    """Start the command in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Preforked([*COMMAND, "ask", "Hi", "--base-url", url], **pipes, env=environment())


def seed_loop(lines) -> str:
    """The loop of tutorials, over the lines of an answer as bytes."""
    text = ""
    for line in lines:
        if line.startswith(b"data: "):
            data = line[6:]
            if data == b"[DONE]":
                return text
            text += json.loads(data)["choices"][0]["delta"].get("content", "")
    raise AssertionError("no [DONE]")


def test_the_usual_loop_over_lines_gives_the_whole_text(client, engine):
    engine.text = 'Grüße 😀!\ntwo lines, "quotes" \\ and data: [DONE]'
    body = {"messages": HELLO, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert seed_loop(line.encode() for line in answer.iter_lines()) == engine.text


def test_the_text_is_that_of_the_whole_answer(live):
    settings = {"max_tokens": 12, "temperature": 0.0, "top_k": 5, "stop": ["zzz"]}
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    body = {"messages": messages, **settings}
    answer = live.http.post("/v1/chat/completions", json=body).json()
    choice = answer["choices"][0]
    code, out, err = ask(
        "Hi", "--base-url", f"{live.url}/v1/", "--system", "Be brief.", "--model", "tiny",
        "--max-tokens", "12", "--temperature", "0", "--top-k", "5", "--stop", "zzz",
    )  # fmt: skip
    assert (code, out) == (0, choice["message"]["content"] + "\n")
    cut = f"quire: the answer was cut: {choice['finish_reason']}\n"
    assert err == ("" if choice["finish_reason"] == "stop" else cut)


def test_settings_reach_the_server_and_a_cut_answer_is_told(client, engine):
    engine.text = "ABCDEF"
    url = str(client.base_url)
    assert ask("Hi", "--base-url", url) == (0, f"{engine.text}\n", "")
    assert engine.params[0].temperature == 0.0, "what is not given is the server's default"
    code, out, err = ask("Hi", "--base-url", url, "--max-tokens", "3", "--temperature", "0.5")
    assert (code, out, err) == (
        0,
        "ABC\n",
        "quire: the answer was cut: length\n",
    )
    assert (engine.params[1].temperature, engine.params[1].max_tokens) == (0.5, 3)


def test_text_is_printed_while_the_rest_is_made(client, engine):
    engine.text, engine.hold_after = "ABC", 1
    with begin(str(client.base_url)) as process:
        assert process.stdout.read(1) == b"A"
        assert engine.ended == [], "the server holds back the next token until now"
        engine.released.set()
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, b"BC\n", b"")


def test_interrupt_ends_the_request(client, engine):
    engine.text, engine.hold_after = "ABC", 1
    with begin(str(client.base_url)) as process:
        assert process.stdout.read(1) == b"A"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, b"\n", b"quire: interrupted\n")
    end = time.monotonic() + 60
    while not engine.ended:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert engine.ended == ["closed"] and not engine.open_requests


def test_reader_that_goes_away_is_no_traceback(client, engine):
    engine.text, engine.hold_after = "ABC", 1
    with begin(str(client.base_url)) as process:
        assert process.stdout.read(1) == b"A"
        process.stdout.close()
        engine.released.set()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, errors) == (1, b"")


def test_the_key_is_sent_and_never_shown(serve, engine):
    url = str(serve(api_key="k-12345").base_url)
    assert ask("Hi", "--base-url", url, key="k-12345") == (0, f"{engine.text}\n", "")
    for wrong in ("k-99999", "k-99999\r\nX: y", "k-99999é"):
        code, out, err = ask("Hi", "--base-url", url, key=wrong)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "k-99999" not in err
        assert ("401" in err) == (wrong == "k-99999"), err
    assert "HTTP 401" in ask("Hi", "--base-url", url)[2]


def test_a_refusal_is_one_line(client):
    code, out, err = ask("Hi", "--base-url", str(client.base_url), "--model", "no\nsuch")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("quire: [server] it refused: HTTP 404: ")


def test_a_failure_behind_the_first_text(client, engine):
    engine.text, engine.fail_after = "AB", 1
    code, out, err = ask("Hi", "--base-url", str(client.base_url))
    assert (code, out) == (1, "A\n")
    assert err == "quire: [server] it failed: Internal server error.\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


def test_comments_and_events_cut_anywhere(script):
    stream = b": keep-alive\n\n" + event("Grüße") + b": keep-alive\n\n" + event(" 😀")
    stream += b'data: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\ndata: [DONE]\n\n'
    bytewise = [stream[i : i + 1] for i in range(len(stream))]
    url = script(*bytewise, b"").url
    assert ask("Hi", "--base-url", url) == (0, "Grüße 😀\n", "")


@pytest.mark.parametrize(
    "pieces",
    [
        [event("A")],  # cut between two pieces
        [event("A"), b""],  # whole for HTTP
        [event("A")[:-2] + b"\n\ndata: {"],
    ],
)
def test_a_connection_that_ends_early(script, pieces):
    code, out, err = ask("Hi", "--base-url", script(*pieces).url)
    assert (code, out, err.count("\n")) == (1, "A\n", 1)
    assert "must end with [DONE]" in err or "must be JSON" in err


def test_an_event_that_is_no_json(script):
    code, out, err = ask("Hi", "--base-url", script(event("A"), b"data: {\xff\n\n", b"").url)
    assert (code, out, err.count("\n")) == (1, "A\n", 1)
    assert "must be JSON" in err


def test_no_server():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: no other socket can, either
        port = taken.getsockname()[1]
        code, out, err = ask("Hi", "--base-url", f"http://127.0.0.1:{port}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.search(rf"No server is running at 127.0.0.1:{port}\..*--base-url", err)


@pytest.mark.parametrize(
    "url",
    ["", "ftp://h", "http://", "http://h:x", "http://u:secret@h", "http://h?secret"],
)
def test_a_wrong_address_is_misuse(url):
    code, out, err = ask("Hi", "--base-url", url)
    assert (code, out) == (2, "")
    assert "--base-url must be" in err and "secret" not in err


def test_the_prompt_may_come_from_stdin(script):
    server = script(event("A"), b"data: [DONE]\n\n", b"")
    assert ask("-", "--base-url", server.url, stdin="two\nlines\n") == (0, "A\n", "")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert (
        head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n") and b"uthorization" not in head
    )
    # The newline that `echo` adds is left out.
    messages = [{"role": "user", "content": "two\nlines"}]
    assert json.loads(body) == {"messages": messages, "stream": True}

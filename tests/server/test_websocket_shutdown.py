"""WebSockets of a server that ends: what runs is answered, what comes then is told why not."""

from __future__ import annotations

import json
import signal

import pytest
from wsproto import events

from tests.server.running import Running
from tests.server.websocket_client import Client
from tests.servers import start_server

COMPLETIONS = "/v1/completions"
PING = '{"type": "ping"}'


def assert_closed(client):
    """The server says that it goes, and hears that the client has understood."""
    event = client.next_event()
    assert isinstance(event, events.CloseConnection), event
    assert (event.code, event.reason) == (1012, "The server is shutting down. Try another.")
    client.send(event.response())


@pytest.fixture
def held(engine):
    """An engine that waits after the first token until it is released."""
    engine.text, engine.hold_after = "ABC", 1
    return engine


def test_what_runs_is_answered_and_nothing_new_begins(held):
    with Running(held, timeout=60.0) as running, Client(running.url, COMPLETIONS) as client:
        client.ask({"prompt": "a"})
        first = json.loads(client.next_text())["choices"][0]["text"]
        running.begin_to_end()
        client.ask({"prompt": "another"})
        refusal = json.loads(client.next_text())["error"]
        assert (refusal["type"], refusal["code"]) == ("ServiceUnavailableError", 503)
        assert "shutting down" in refusal["message"]
        client.ask(PING)
        assert json.loads(client.next_text()) == {"type": "pong"}
        held.released.set()
        *_, last = rest = list(client.answers())
        assert first + "".join(chunk["choices"][0]["text"] for chunk in rest) == "ABC"
        assert last["choices"][0]["finish_reason"] == "stop"
        assert_closed(client)
        running.join()
    assert held.ended == ["finished"] and len(held.params) == 1


def test_idle_connections_are_closed_at_once(held):
    with Running(held, timeout=60.0) as running, Client(running.url, COMPLETIONS) as client:
        client.ask(PING)
        assert json.loads(client.next_text()) == {"type": "pong"}
        running.begin_to_end()
        assert_closed(client)
        running.join()


def test_a_cancel_still_cancels(held):
    with Running(held, timeout=60.0) as running, Client(running.url, COMPLETIONS) as client:
        client.ask({"prompt": "a"})
        client.next_text()
        running.begin_to_end()
        client.ask({"type": "cancel"})
        assert list(client.answers()) == []
        assert_closed(client)
        running.join()
    assert held.ended == ["closed"]


def test_what_is_late_is_ended_with_words(held):
    with Running(held, timeout=0.05) as running, Client(running.url, COMPLETIONS) as client:
        client.ask({"prompt": "a"})
        client.next_text()
        running.begin_to_end()
        (error,) = (event for event in client.answers() if "error" in event)
        assert error["error"]["type"] == "ServiceUnavailableError"
        assert_closed(client)
        running.join()


def test_a_client_that_does_not_answer_the_close_holds_nothing_up(held):
    """It gets two seconds of the sixty."""
    with Running(held, timeout=60.0) as running, Client(running.url, COMPLETIONS) as client:
        client.ask(PING)
        client.next_text()
        running.begin_to_end()
        running.join()


def test_sigterm_of_a_real_server(folder, device):
    body = {"prompt": "a", "n": 4, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
    flags = ["--device", device, "--memory", "64MiB", "--threads", "1"]
    with start_server([str(folder), *flags]) as server:
        url = server.wait_ready()
        with Client(url, COMPLETIONS) as client, Client(url, COMPLETIONS) as idle:
            client.ask(body)
            expected = joined(client.answers())
            client.ask(body)
            first = json.loads(client.next_text())
            server.popen.send_signal(signal.SIGTERM)
            assert joined([first, *client.answers()]) == expected
            assert_closed(client)
            assert_closed(idle)
        assert server.end() == 0, server.stderr
    assert "Traceback" not in server.stderr
    assert {reason for _, reason in expected.values()} == {"length"}


def joined(chunks):
    """Return each choice's text and ending."""
    found = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, _ = found.get(choice["index"], ("", None))
            found[choice["index"]] = text + choice["text"], choice["finish_reason"]
    return found

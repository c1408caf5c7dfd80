"""The way of a chat request through the server, as docs/data_flow.md draws it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import quire.server
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.http.body import JsonRequest

ROOM = str(Path(quire.server.__file__).parent)
#: From the ASGI call on. Before it are HttpProtocol's callbacks, in the midst Starlette's router;
#: each stop gets the request in one form and hands it on, perhaps in the next.
STOPS = [
    "Boundary.__call__",
    "RequireKey.__call__",
    "ByModel.__call__",
    "GenerationEndpoint.respond",
    "ChatCompletions.prepare",
    "prepare_chat",
    "collect",
    "generate",
]
#: A form's own constructor is no stop.
FORMS = (JsonRequest, ApiRequest, Submission)
BODY = {"model": "quire-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def server_frames():
    """Names of the server's functions on the stack, the outermost first."""
    names, frame = [], sys._getframe()
    while frame is not None:
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        is_form = name.partition(".")[0] in {form.__name__ for form in FORMS}
        if frame.f_code.co_filename.startswith(ROOM) and not is_form:
            names.append(name)
        frame = frame.f_back
    return names[::-1]


@pytest.fixture
def way(engine, monkeypatch):
    """Functions on the stack whenever the request takes its next form, by form."""
    found = {}

    def record(form, function):
        def recording(*args, **kwargs):
            found.setdefault(form, server_frames())
            return function(*args, **kwargs)

        return recording

    for form in FORMS:
        monkeypatch.setattr(form, "__init__", record(form, form.__init__))
    engine.generate = record("engine", engine.generate)
    return found


def test_a_chat_request_has_few_stops(serve, way):
    client = serve(api_key="key")
    headers = {"Authorization": "Bearer key"}
    answer = client.post("/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    assert list(way) == [*FORMS, "engine"]
    passed = dict.fromkeys(name for names in way.values() for name in names)
    assert list(passed) == STOPS
    # With HttpProtocol, the router, and four in quire.llm: client, message, loop, engine.
    assert 2 + len(STOPS) + 4 <= 14

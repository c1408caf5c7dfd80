"""Routes that only read texts: away from the event loop, and counted against the key's limits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from quire.protocol.anthropic import anthropic
from quire.protocol.ollama import ollama
from quire.server.access.authentication import ApiKey
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.http import body as http_body
from quire.server.openai import tokenization
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from quire.text.offloading import INLINE_CHARACTERS
from quire.text.templates import template_processes
from quire.text.templates.chat_template import ChatTemplate
from tests.server.conftest import run_in_thread

MESSAGES = [{"role": "user", "content": "Hi"}]
LONG = "ab" * INLINE_CHARACTERS
ROUTES = {
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": MESSAGES},
    "/v1/messages/count_tokens": {"model": "quire-tiny", "messages": MESSAGES},
}


def test_what_only_reads_texts_was_counted_by_no_limit(engine):
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    keys = (ApiKey.create("few", rpm=4), ApiKey.create("short", tpm=60))
    service = Service(engine, EngineConfig(), Shared(options, keys))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:

        def ask(key: str, path: str, body: object) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return client.post(path, json=body, headers=headers).status_code

        assert [ask("few", path, body) for path, body in ROUTES.items()] == [200] * 4
        assert [ask("few", path, body) for path, body in ROUTES.items()] == [429] * 4
        assert ask("short", "/tokenize", {"prompt": "ab" * 200}) == 200
        assert ask("short", "/tokenize", {"prompt": "ab"}) == 429


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": LONG}),
        ("/tokenize", {"content": LONG, "with_pieces": True, "parse_special": False}),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": ["ab" * 40] * 100, "max_tokens": 1}),
        ("/v1/embeddings", {"input": ["ab" * 40] * 100}),
        ("/api/embed", {"input": ["ab" * 40] * 100}),
        ("/api/embed", {"input": ["ab"] * 1025}),
        ("/score", {"text_1": "ab", "text_2": [f"ab{i}" * 20 for i in range(100)]}),
        ("/infill", {"input_prefix": LONG, "input_suffix": LONG}),
    ],
)
def test_many_short_texts_were_tokenized_on_the_loop(client, engine, monkeypatch, path, body):
    """Each was short enough to be tokenized at once, a thousand of them one after another."""
    threads = set()
    encode = engine.tokenizer.encode

    def watched(text, *options, **named):
        if text and "ab" in text:
            threads.add(threading.current_thread().name.partition("_")[0])
        return encode(text, *options, **named)

    monkeypatch.setattr(engine.tokenizer, "encode", watched)
    client.post(path, json=body)
    assert threads <= {"quire-texts"}


def test_detokenizing_is_done_elsewhere(client, engine, monkeypatch):
    threads = []
    decode = engine.tokenizer.decode

    def watched(*arguments, **named):
        threads.append(threading.current_thread().name.partition("_")[0])
        return decode(*arguments, **named)

    monkeypatch.setattr(engine.tokenizer, "decode", watched)
    answer = client.post("/detokenize", json={"tokens": [70] * INLINE_CHARACTERS})
    assert (answer.status_code, threads) == (200, ["quire-texts"])


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Grüße! " * 9, "return_token_strs": True},
        {"prompt": "", "add_special_tokens": False, "return_token_strs": True},
        {"content": "Grüße! " * 9, "with_pieces": True},
        {"content": "Grüße! " * 9},
    ],
)
def test_answers_in_slices_are_the_same(client, monkeypatch, body):
    """All at once, those of great texts held the interpreter for as long."""
    expected = client.post("/tokenize", json=body).json()
    monkeypatch.setattr(tokenization, "_SLICE", 7)
    assert client.post("/tokenize", json=body).json() == expected


def test_a_template_that_loops_kept_all_clients_waiting(client, engine, monkeypatch):
    """It was rendered on the event loop, which then had no byte for any client, for ever."""
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'loop' %}" + loops + "{% endif %}{{ messages }}"
    template = ChatTemplate({"default": source}, {})
    monkeypatch.setattr(engine.tokenizer, "chat_template", template)
    monkeypatch.setattr(template_processes, "RENDER_SECONDS", 0.5)

    def ask(content: str) -> httpx2.Response:
        messages = [{"role": "user", "content": content}]
        return client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})

    assert ask("a").status_code == 200
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, "loop")
        assert [ask("a").status_code for _ in range(3)] == [200] * 3
        assert client.get("/health/live").status_code == 200
        answer = slow.result()
    assert answer.status_code == 400
    assert "it takes longer than 0.5 s" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES * 3000, "max_tokens": 1}),
        ("/tokenize", {"messages": MESSAGES * 3000}),
        ("/detokenize", {"tokens": [70] * 40_000}),
        ("/apply-template", {"messages": MESSAGES * 3000}),
        ("/v1/messages/count_tokens", {"model": "quire-tiny", "messages": MESSAGES * 3000}),
        ("/api/chat", {"model": "quire-tiny", "messages": MESSAGES * 3000, "stream": False}),
    ],
)
@pytest.mark.parametrize("name", ["to_struct", "decode_json"])
def test_large_bodies_were_decoded_on_the_loop(client, monkeypatch, path, body, name):
    """Sixty thousand messages, of two megabytes, kept all streams waiting for 71 ms."""
    threads = set()
    decode = getattr(http_body, name)

    def watched(*arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        return decode(*arguments)

    monkeypatch.setattr(http_body, name, watched)
    client.post(path, json=body)
    assert threads == {"quire-texts"}


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/messages", "to_messages", {"max_tokens": 1, "messages": MESSAGES * 3000}),
        ("/v1/messages/count_tokens", "to_messages", {"messages": MESSAGES * 3000}),
        ("/api/chat", "_content", {"messages": MESSAGES * 3000, "stream": False}),
        ("/api/generate", "_content", {"prompt": "a", "images": [""] * 3000, "stream": False}),
    ],
)
def test_long_histories_of_other_shapes_became_ours_on_the_loop(
    client, monkeypatch, path, name, body
):
    """Sixty thousand turns of Anthropic's shape kept all streams waiting for 113 ms."""
    threads = set()
    module = anthropic if "v1" in path else ollama
    read = getattr(module, name)

    def watched(*arguments):
        threads.add(threading.current_thread().name.partition("_")[0])
        return read(*arguments)

    monkeypatch.setattr(module, name, watched)
    answer = client.post(path, json={"model": "quire-tiny", **body})
    assert answer.status_code in (200, 400), answer.text
    assert threads == {"quire-texts"}

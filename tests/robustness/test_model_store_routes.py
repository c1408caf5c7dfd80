"""Ollama's routes that change what models there are, on a real server and a stand-in hub."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2
import pytest

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
ANSWER = "The capital of France is Paris."


@pytest.fixture
def hub(pulling_server):
    """A hub that has it."""
    return pulling_server[1].hub


@pytest.fixture
def server(pulling_server):
    """A client of a server without a model of its own but quire-tiny."""
    process, _ = pulling_server
    with httpx2.Client(base_url=process.address, timeout=60) as client:
        client.process = process
        yield client


def chat(client, model):
    return client.post("/api/chat", json={**QUESTION, "model": model, "stream": False})


def text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["message"]["content"]


def delete(client, model):
    return client.request("DELETE", "/api/delete", json={"model": model})


def test_pull_chat_create_copy_delete(server):
    name = "org/tiny:Q8_0"
    assert chat(server, name).status_code == 404, "nothing is fetched for a request"
    pulled = server.post("/api/pull", json={"model": name})
    lines = [json.loads(line) for line in pulled.text.splitlines()]
    assert lines[-1] == {"status": "success"}
    assert any(line.get("completed") == line.get("total") for line in lines if "total" in line)
    assert text(chat(server, name)) == ANSWER
    made = {"model": "pirate", "from": name, "parameters": {"num_predict": 2}}
    lines = server.post("/api/create", json=made).text.splitlines()
    assert json.loads(lines[-1]) == {"status": "success"}
    assert 0 < len(text(chat(server, "pirate"))) < len(ANSWER)
    copy = server.post("/api/copy", json={"source": "pirate", "destination": "parrot"})
    assert copy.status_code == 200 and not copy.content
    assert text(chat(server, "parrot")) == text(chat(server, "pirate"))
    for model in ("pirate", "parrot", name):
        assert delete(server, model).status_code == 200
        assert chat(server, model).status_code == 404
    assert delete(server, "pirate").status_code == 404
    assert text(chat(server, "quire-tiny")) == ANSWER


def test_a_model_that_cannot_be_loaded_is_no_internal_error(server, hub):
    """Any file in the shared cache, such as another program's, made it one."""
    hub.repositories["org/junk"] = {"junk-Q8_0.gguf": b"GGUF" * 1000}
    name = "org/junk:Q8_0"
    assert server.post("/api/pull", json={"model": name, "stream": False}).status_code == 200
    answer = chat(server, name)
    assert answer.status_code == 503 and f"{name} cannot be loaded" in answer.text, answer.text
    assert delete(server, name).status_code == 200


def test_a_template_and_messages_are_part_of_what_is_made(server):
    """Both were refused."""
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
    messages = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    made = {"model": "count", "from": "quire-tiny", "template": template, "messages": messages}
    assert server.post("/api/create", json=made | {"system": "Count."}).status_code == 200
    shown = server.post("/api/show", json={"model": "count"}).json()
    assert (shown["template"], shown["messages"]) == (template, messages)
    asked = {"model": "count", "messages": [{"role": "user", "content": "2+2"}]}
    assert chat(server, "count").status_code == 200
    assert server.post("/apply-template", json=asked).json()["prompt"] == (
        "[system] Count.\n[user] 1+1\n[assistant] 2\n[user] 2+2\n[assistant]"
    )
    count = server.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]
    assert count == len(server.post("/tokenize", json=asked).json()["tokens"])


def test_a_model_made_anew_is_used_anew(server):
    made = {"model": "short", "from": "quire-tiny", "parameters": {"num_predict": 1}}
    assert server.post("/api/create", json=made).status_code == 200
    first = text(chat(server, "short"))
    made["parameters"] = {}
    assert server.post("/api/create", json=made).status_code == 200
    assert len(first) < len(text(chat(server, "short")))
    assert text(chat(server, "short")) == ANSWER


def test_keep_alive_says_how_long_a_model_stays(server):
    # Of quire-tiny, which stays, it would be there as long as that.
    name = "org/tiny:Q8_0"
    assert server.post("/api/pull", json={"model": name, "stream": False}).status_code == 200
    made = {"model": "guest", "from": name}
    assert server.post("/api/create", json=made).status_code == 200

    def state():
        found = server.get("/models").json()["data"]
        return next((m["status"]["value"] for m in found if m["id"] == "guest"), "unknown")

    def wait_for(wanted):
        end = time.monotonic() + 60
        while state() != wanted:
            assert time.monotonic() < end, state()
            time.sleep(0.02)

    assert state() == "absent"
    loaded = server.post("/api/generate", json={"model": "guest", "keep_alive": "1h"})
    assert loaded.json()["done_reason"] == "load"
    assert "keep_alive" not in loaded.headers.get("x-ignored-params", "")
    guest = next(m for m in server.get("/api/ps").json()["models"] if m["name"] == "guest:latest")
    assert not guest["expires_at"].startswith("9999")
    gone = server.post("/api/generate", json={"model": "guest", "keep_alive": 0})
    assert gone.json()["done_reason"] == "unload"
    wait_for("absent")
    assert text(chat(server, "guest")) == ANSWER
    assert state() == "ready", "what was said of it has ended with its unloading"
    forever = server.post("/api/generate", json={"model": "guest", "keep_alive": -1})
    assert forever.json()["done_reason"] == "load"
    guest = next(m for m in server.get("/api/ps").json()["models"] if m["name"] == "guest:latest")
    assert guest["expires_at"].startswith("9999")
    stays = server.post("/api/generate", json={"model": "quire-tiny", "keep_alive": 0})
    assert stays.json()["done_reason"] == "load", "it was there at the start"
    assert "keep_alive" in stays.headers["x-ignored-params"]


def test_what_cannot_be_had_is_said_and_changes_nothing(server, tmp_path):
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    wrong = [
        ("/api/pull", {"model": "org/none", "stream": False}),
        ("/api/pull", {"model": str(tmp_path), "stream": False}),
        ("/api/pull", {"stream": False}),
        ("/api/pull", {"model": "org/tiny", "username": "me", "stream": False}),
        ("/api/create", {"model": "x", "from": str(tmp_path / "secret.gguf")}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "template": "{{ .Prompt }}"}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "template": "a text"}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "messages": [{"role": "user"}]}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "adapters": {"a": "sha256:1"}}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "parameters": {"num_gpu": 1}}),
        ("/api/create", {"model": "x", "from": "quire-tiny", "parameters": {"top_p": 7}}),
        ("/api/create", {"model": "../x", "from": "quire-tiny"}),
        ("/api/create", {"model": "x"}),
        ("/api/copy", {"source": "none", "destination": "x"}),
        ("/api/copy", {"source": "quire-tiny", "destination": "a b"}),
    ]
    for path, body in wrong:
        answer = server.post(path, json=body)
        assert 400 <= answer.status_code < 500, (path, body, answer.text)
        assert isinstance(answer.json()["error"], str), answer.text
    assert delete(server, "quire-tiny").status_code == 409, "it was there at the start"
    assert text(chat(server, "quire-tiny")) == ANSWER


def test_a_pull_continues_without_watchers_until_it_is_stopped(server, hub):
    hub.slow_after = 300_000  # it is under way for as long as it is looked at
    body = {"model": "org/tiny:Q8_0"}

    def pull(path):
        """Return the bytes there were when it was left."""
        with server.stream("POST", path, json=body) as answer:
            for line in answer.iter_lines():
                if json.loads(line).get("completed", 0) > 100_000:
                    return json.loads(line)["completed"]

    def follow(path, begun):
        """Return all that it is told; ``begun`` when there is something."""
        with server.stream("POST", path, json=body) as answer:
            told = []
            for line in answer.iter_lines():
                told.append(json.loads(line))
                begun.set()
            return told

    def coming():
        return [m for m in server.get("/models").json()["data"] if "goes_on" in m["status"]]

    assert server.post("/models/pull/watch", json=body).status_code == 404
    first = pull("/models/pull")
    assert coming()[0]["status"]["goes_on"] is True
    assert chat(server, body["model"]).status_code == 503, "it is being pulled"
    assert pull("/models/pull/watch") >= first
    with ThreadPoolExecutor(2) as pool:
        begun = [threading.Event() for _ in range(2)]
        asking = list(map(partial(pool.submit, follow), ("/models/pull", "/api/pull"), begun))
        assert all(one.wait(60) for one in begun)
        assert server.post("/models/pull/cancel", json=body).json()["was_running"] is True
        assert "The pull was stopped" in asking[0].result()[-1]["error"]
        hub.slow_after = None
        assert asking[1].result()[-1] == {"status": "success"}
    assert server.post("/models/pull/cancel", json=body).json()["was_running"] is False
    assert delete(server, body["model"]).status_code == 200
    hub.slow_after = 300_000
    pull("/models/pull")
    hub.slow_after = None
    end = time.monotonic() + 60
    while chat(server, body["model"]).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert coming() == []


def test_a_client_that_leaves_ends_its_pull_and_the_next_goes_on(server, hub):
    hub.slow_after = 300_000
    with server.stream("POST", "/api/pull", json={"model": "org/tiny:Q8_0"}) as answer:
        for line in answer.iter_lines():
            if json.loads(line).get("completed", 0) > 100_000:
                break
            coming = server.get("/models").json()["data"][-1]
            assert coming["id"] == "org/tiny:Q8_0", coming
            assert coming["status"]["value"] == "downloading"
            asked = chat(server, "org/tiny:Q8_0")
            assert asked.status_code == 503 and "is being pulled" in asked.json()["error"]
            assert int(asked.headers["retry-after"]) > 0
    end = time.monotonic() + 60
    while "downloading" in server.get("/models").text:
        assert time.monotonic() < end
        time.sleep(0.02)
    num_requests = len(hub.requests)
    time.sleep(0.5)
    assert len(hub.requests) == num_requests, "nothing goes on"
    assert chat(server, "org/tiny:Q8_0").status_code == 404, "nothing half visible"
    hub.slow_after = None
    done = server.post("/api/pull", json={"model": "org/tiny:Q8_0", "stream": False})
    assert done.json() == {"status": "success"}
    ranges = [part for method, _, part in hub.requests if method == "GET" and part]
    assert ranges, "it began where the first one was cut"
    assert text(chat(server, "org/tiny:Q8_0")) == ANSWER


def test_slow_pulls_hold_up_no_request(server, hub):
    hub.pause = 0.01
    pulls = [
        threading.Thread(
            target=lambda: server.post("/api/pull", json={"model": "org/tiny:Q8_0"}, timeout=60)
        )
        for _ in range(4)
    ]
    for pull in pulls:
        pull.start()
    for _ in range(10):
        assert text(chat(server, "quire-tiny")) == ANSWER
    hub.pause = 0.0
    for pull in pulls:
        pull.join()


def test_a_server_that_ends_gives_up_its_pulls(server, hub):
    hub.pause = 0.01
    with server.stream("POST", "/api/pull", json={"model": "org/tiny:Q8_0"}) as answer:
        lines = answer.iter_lines()
        while not json.loads(next(lines)).get("completed"):
            pass
        server.process.popen.terminate()
        rest = [json.loads(line) for line in lines]
    assert "shutting down" in rest[-1]["error"]
    assert server.process.popen.wait(60) == 0
    assert "Traceback" not in server.process.stderr

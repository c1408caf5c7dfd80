"""``quire serve`` as people run it: a process, signals, exit codes, OpenAI's client."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx2
import openai
import pytest

from tests.cli.held_engines import Hold, wait_stopped
from tests.servers import start_server
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory, device: str) -> list[str]:
    """A tiny checkpoint and the settings that fit it."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return [str(folder), "--device", device, "--memory", "32MiB", "--threads", "1"]


@pytest.fixture
def start() -> Iterator[Callable[..., ServeProcess]]:
    """Start ``quire serve``; what still runs at the end of the test is killed.

    In a fresh interpreter, which imports all that it needs, where ``fresh`` says so.
    """
    running: list[ServeProcess] = []

    def run(arguments: list[str], fresh: bool = False, **environment: str) -> ServeProcess:
        running.append((ServeProcess if fresh else start_server)(arguments, **environment))
        return running[-1]

    yield run
    for process in running:
        if process.popen.returncode is None:
            process.popen.kill()
            process.end()


def test_from_start_to_end(start, arguments):
    process = start(
        [*arguments, "--port", "0", "--served-model-name", "tiny"], fresh=True, QUIRE_API_KEY="k"
    )
    url = process.wait_ready()
    assert url.startswith("http://127.0.0.1:")
    wait_for(lambda: "memory: weights" in process.stderr)  # the memory plan
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        assert [model.id for model in client.models.list()] == ["tiny"]
        fields = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0}
        whole = client.chat.completions.create(**fields)
        assert whole.usage.completion_tokens == 8
        stream = client.chat.completions.create(**fields, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        # A signal while a request runs: it is answered all the same.
        stream = client.completions.create(
            model="tiny",
            prompt="Once",
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = [next(stream)]
        process.popen.send_signal(signal.SIGTERM)
        chunks += stream
        assert chunks[-1].choices[0].finish_reason == "length"
    assert process.end() == 0, process.stderr
    assert "Traceback" not in process.stderr


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_engine_ends_requests_with_words_and_comes_back(start, arguments, tmp_path):
    hold = Hold(tmp_path)
    process = start([*arguments, "--port", "0"], **hold.environment)
    url = process.wait_ready()
    body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}
    endless = {**body, "n": 16, "max_tokens": 2000}
    engine = process.engine()
    answers = []
    with httpx2.Client(base_url=url, timeout=60) as client:

        def ask() -> None:
            answers.append(httpx2.post(f"{url}/v1/completions", json=endless, timeout=60))

        whole = threading.Thread(target=ask)
        whole.start()
        with client.stream("POST", "/v1/completions", json={**endless, "stream": True}) as stream:
            parts = stream.iter_text()
            text = next(parts)
            engine.suspend()  # else they may be over before both are seen
            hold.begin()
            wait_for(lambda: httpx2.get(f"{url}/health/progress").json()["pending"] == 2)
            engine.kill()
            text += "".join(parts)
        whole.join(60)
        error = text.split("\n\n")[-3]
        assert '"type":"ServiceUnavailableError"' in error and "SIGKILL" in error
        assert text.endswith("data: [DONE]\n\n")
        assert answers[0].status_code == 503 and "SIGKILL" in answers[0].text
        # It comes back by itself; until then it says when to try again.
        assert client.get("/health").status_code == client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        again = wait_stopped(process)
        hold.end()
        again.resume()
        wait_for(lambda: client.get("/health/ready").status_code == 200)
        assert client.post("/v1/completions", json=body).status_code == 200
        assert "quire:engine_restarts_total" in client.get("/metrics").text
    assert process.end() == 0, process.stderr
    assert not engine.is_running()


def test_a_killed_server_takes_its_engine_along(start, arguments):
    process = start([*arguments, "--port", "0"], fresh=True)
    process.wait_ready()
    engine = process.engine()
    process.end(signal.SIGKILL)
    engine.wait(60)


def test_a_stopped_engine_is_replaced(start, arguments):
    process = start([*arguments, "--port", "0", "--watchdog-timeout", "2"])
    url = process.wait_ready()
    engine = process.engine()
    engine.suspend()
    answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=60)
    assert answer.status_code == 503 and "--watchdog-timeout" in answer.text
    wait_for(lambda: httpx2.get(f"{url}/health/ready").status_code == 200)
    assert process.end() == 0
    assert "most recent call first" in process.stderr, "the stacks"


def test_keys_from_a_file_and_a_queue_bound(start, arguments, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("reader read\n")
    flags = ["--api-key-file", str(keys), "--max-num-queued-reqs", "7", "--port", "0"]
    process = start([*arguments, *flags, "--api-key", "one", "--api-key", "two"])
    url = process.wait_ready()
    expected = {"reader": [200, 403], "one": [200, 200], "two": [200, 200], "three": [401, 401]}
    for key, statuses in expected.items():
        headers = {"authorization": f"Bearer {key}"}
        got = [
            httpx2.get(f"{url}{path}", headers=headers)
            for path in ("/v1/models", "/debug/kv_cache")
        ]
        assert [answer.status_code for answer in got] == statuses, key
    assert process.end() == 0
    assert not [key for key in expected if f"Bearer {key}" in process.stderr]


def test_open_to_others_without_a_key_is_said_and_ctrl_c_is_an_orderly_end(start, arguments):
    process = start([*arguments, "--host", "0.0.0.0", "--port", "0"], fresh=True, QUIRE_API_KEY="")
    assert process.wait_ready().startswith("http://0.0.0.0:")
    assert "0.0.0.0 is reachable by others and needs no key" in process.stderr
    assert process.end(signal.SIGINT) == 0
    assert "Traceback" not in process.stderr


def test_a_unix_socket(start, arguments, tmp_path):
    path = tmp_path / "quire.sock"
    process = start([*arguments, "--uds", str(path)])
    assert process.wait_ready() == f"unix:{path}"
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://quire/health").status_code == 200
    assert process.end() == 0
    assert not path.exists()


def test_a_taken_port_is_one_line(start, arguments):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start([*arguments, "--port", str(port)])
        assert process.popen.wait(60) == 1
        process.end()
    assert re.fullmatch(rf"quire: \[serve\] 127.0.0.1:{port} must be free.*\n", process.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["/no/such/folder"], 1, "/no/such/folder"),
        (["--port", "70000"], 2, "--port"),
        (["--no-such-flag"], 2, "--no-such-flag"),
    ],
)
def test_mistakes_end_at_once(start, arguments, code, text):
    process = start([*arguments] if "--port" in arguments else [*arguments, "--port", "0"])
    assert process.popen.wait(60) == code
    process.end()
    assert text in process.stderr and "Traceback" not in process.stderr

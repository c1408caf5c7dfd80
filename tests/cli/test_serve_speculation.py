"""``quire serve`` with methods that propose tokens, and requests that ask for them or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from quire.core.speculative_config import AVAILABLE_METHODS
from tests.servers import start_server
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

CONFIG = '[{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}]'
PROMPT = "abcabcabcabcabc"
REQUEST = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": 1}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    arguments = [str(folder), "--device", device, "--memory", "32MiB", "--threads", "1"]
    with start_server([*arguments, "--speculative-config", CONFIG]) as started:
        started.wait_ready()
        yield started


def post(process: ServeProcess, path: str = "/v1/completions", **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{process.address}{path}", json=fields, timeout=60)


def test_a_method_that_is_not_there_is_told(process: ServeProcess) -> None:
    said = "--speculative-config ngram is not available: no tokens are proposed"
    assert (said in process.stderr) == ("ngram" not in AVAILABLE_METHODS)


@pytest.mark.parametrize("field", [True, False, None, {}, {"tokens": 0}], ids=str)
def test_the_same_answer_however_it_is_asked_for(process: ServeProcess, field: Any) -> None:
    plain = post(process, **REQUEST)
    asked = post(process, **REQUEST, speculative=field)
    assert plain.status_code == asked.status_code == 200
    assert "x-ignored-params" not in asked.headers
    assert asked.json()["choices"] == plain.json()["choices"]
    assert len(asked.json()["choices"][0]["logprobs"]["tokens"]) == 24


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"method": "medusa"}, "speculative"),
        ({"tokens": 4}, "speculative"),
        ({"tokens": -1}, "speculative.tokens"),
        ({"method": "magic"}, "speculative.method"),
        ("off", "speculative"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_the_server_does_not_have_is_refused(
    process: ServeProcess, field: Any, param: str, stream: bool
) -> None:
    message = {"role": "user", "content": "Hi"}
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [message]}),
        ("/v1/responses", {"input": "Hi"}),
    ):
        answer = post(process, path, **body, speculative=field, stream=stream)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["param"] == param


MESSAGES = [{"role": "user", "content": PROMPT}]
#: Routes in other servers' shapes: a request, and the object in it that has the settings.
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 24, "seed": 5}, ""),
    "/api/generate": (
        {"prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 24, "seed": 5}},
        "options",
    ),
    "/api/chat": (
        {"messages": MESSAGES, "stream": False, "options": {"num_predict": 24, "seed": 5}},
        "options",
    ),
    "/generate": (
        {"inputs": PROMPT, "parameters": {"max_new_tokens": 24, "do_sample": True, "seed": 5}},
        "parameters",
    ),
    "/completion": ({"prompt": PROMPT, "n_predict": 24, "seed": 5}, ""),
}
TEXTS = ("content", "response", "message", "generated_text")


def shaped(path: str, **fields: Any) -> dict[str, Any]:
    """Return the request of a route with more settings."""
    body, inside = SHAPES[path]
    return body | ({inside: body[inside] | fields} if inside else fields)


def num_rounds(process: ServeProcess) -> float:
    """Return how often the server has proposed tokens."""
    lines = httpx2.get(f"{process.address}/metrics", timeout=60).text.splitlines()
    found = [line for line in lines if line.startswith("quire:spec_decode_num_drafts_total")]
    assert found
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("path", SHAPES)
def test_other_shapes_ask_for_it_too(process: ServeProcess, path: str) -> None:
    answers, rounds = [], []
    for field in (
        {},
        {"speculative": True},
        {"speculative": {"tokens": 2}},
        {"speculative": False},
    ):
        before = num_rounds(process)
        answer = post(process, path, **shaped(path, **field))
        assert answer.status_code == 200, answer.text
        assert "x-ignored-params" not in answer.headers
        answers.append([answer.json().get(name) for name in TEXTS])
        rounds.append(num_rounds(process) - before)
    assert answers == answers[:1] * 4 and any(answers[0])
    # The first answer is where tokens of the others are looked up.
    assert all(rounds[1:3]) and not rounds[3]


@pytest.mark.parametrize(
    ("field", "inside"),
    [
        ({"method": "medusa"}, ""),
        ({"tokens": 4}, ""),
        ({"tokens": -1}, ".tokens"),
        ({"method": "magic"}, ".method"),
        ({"speed": 2}, ""),
        ("off", ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", SHAPES)
def test_other_shapes_refuse_the_same(
    process: ServeProcess, path: str, field: Any, inside: str
) -> None:
    answer = post(process, path, **shaped(path, speculative=field))
    assert answer.status_code == 400, answer.text
    name = ".".join(filter(None, (SHAPES[path][1], "speculative")))
    error = answer.json()["error"]
    text = error if isinstance(error, str) else error["message"]
    assert text.startswith(f"[{name}")
    if path != "/v1/messages":  # whose errors have no such field
        assert (answer.json() if isinstance(error, str) else error)["param"] == name + inside


def test_the_names_of_llama_server(process: ServeProcess) -> None:
    plain = post(process, "/completion", **shaped("/completion", speculative=False)).json()
    before = num_rounds(process)
    off = post(process, "/completion", **shaped("/completion", **{"speculative.n_max": 0}))
    assert off.json()["content"] == plain["content"] and num_rounds(process) == before
    own = {"speculative.n_max": 2, "speculative.n_min": 1, "speculative.p_min": 0.5}
    answer = post(process, "/completion", **shaped("/completion", **own))
    assert answer.json()["content"] == plain["content"] and num_rounds(process) > before
    assert answer.headers["x-ignored-params"] == "speculative.n_min, speculative.p_min"
    assert answer.json()["generation_settings"]["speculative.n_max"] == 2
    for wrong, param in (
        ({"speculative.n_max": 4}, "speculative"),
        ({"speculative.n_max": 65}, "speculative.n_max"),
        ({"speculative.n_max": 2, "speculative": False}, "speculative.n_max"),
    ):
        answer = post(process, "/completion", **shaped("/completion", **wrong))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_server_without_methods_refuses_what_it_would_have_to_ignore(
    model: Path, device: str
) -> None:
    arguments = [str(model), "--device", device, "--memory", "32MiB", "--threads", "1"]
    with start_server(arguments) as plain:
        plain.wait_ready()
        answer = post(plain, "/completion", **shaped("/completion", **{"speculative.n_max": 0}))
        assert answer.status_code == 200, answer.text
        answer = post(plain, "/completion", **shaped("/completion", **{"speculative.n_max": 2}))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "speculative")
        assert "--speculative-config" in error["message"]
        assert "got {'num_speculative_tokens': 2}" in error["message"]

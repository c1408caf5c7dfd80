"""``quire serve`` with methods that propose tokens, and requests that ask for them or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from quire.core.speculative_config import AVAILABLE_METHODS
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

CONFIG = '[{"method": "ngram", "num_speculative_tokens": 3}]'
PROMPT = "abcabcabcabcabc"
REQUEST = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": 1}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    arguments = [str(folder), "--device", device, "--memory", "32MiB", "--threads", "1"]
    with ServeProcess([*arguments, "--speculative-config", CONFIG]) as started:
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

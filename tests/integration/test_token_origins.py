"""Where each token comes from: told on demand, by the engine and over HTTP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import ASSETS
from tests.servers import start_server

TINY = ASSETS / "quire-tiny"
METHOD = {"method": "draft_model", "model": "quire-tiny-draft", "adaptive": False}
CHAT = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "temperature": 0, "max_tokens": 60, "ignore_eos": True,
}  # fmt: skip


def test_origins_agree_with_the_counters(create_llm: Callable[..., LLM]) -> None:
    llm = create_llm(TINY, speculative_config=METHOD)
    stop = SamplingParams(max_tokens=60, seed=2, token_origins=True, stop=["."])
    plain = SamplingParams(max_tokens=60, seed=3, token_origins=True, speculative=False)
    whole = SamplingParams(max_tokens=61, seed=1, token_origins=True, ignore_eos=True)
    (output,) = llm.generate(["Once upon a time"], whole)
    (one,), stats = output.outputs, llm.engine.stats()
    label = '{method="draft_model"}'
    assert one.token_origins is not None
    origins = Counter(one.token_origins)
    assert set(origins) == {"draft_model", "model"}
    assert origins.total() == len(one.token_ids) == 61
    held = stats[f"spec_decode_num_accepted_tokens{label}"]
    proposed = stats[f"spec_decode_num_draft_tokens{label}"]
    assert isinstance(held, int) and isinstance(proposed, int)
    # What the last round accepted past the limit is no part of the answer.
    assert held - 4 <= origins["draft_model"] <= held
    assert proposed - held <= one.num_rejected_tokens <= proposed - origins["draft_model"]
    stopped, without = (llm.generate(["A dog"], own)[0].outputs[0] for own in (stop, plain))
    assert len(stopped.token_origins or ()) == len(stopped.token_ids)
    assert without.token_origins == ["model"] * len(without.token_ids)
    assert llm.generate(["A dog"])[0].outputs[0].token_origins is None


@pytest.fixture(scope="module")
def server() -> Iterator[httpx2.Client]:
    words = ["--threads", "1", "--memory", "128MiB", "--speculative-config", json.dumps(METHOD)]
    with (
        start_server(words) as process,
        httpx2.Client(base_url=process.wait_ready(), timeout=60) as client,
    ):
        yield client


def post(client: httpx2.Client, path: str, **body: Any) -> httpx2.Response:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_chats_tell_them_on_demand(server: httpx2.Client) -> None:
    path = "/v1/chat/completions"
    assert "token_origins" not in (silent := post(server, path, **CHAT)).text
    assert "prediction" not in silent.text
    asked = {**CHAT, "return_token_origins": True}
    whole = post(server, path, **asked).json()
    origins = whole["choices"][0]["token_origins"]
    assert whole["choices"][0]["message"] == silent.json()["choices"][0]["message"]
    details = whole["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == origins.count("draft_model") > 0
    assert details["rejected_prediction_tokens"] > 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = post(server, path, **asked, **options).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [o for choice in choices for o in choice.get("token_origins", ())] == origins
    assert chunks[-1]["usage"]["completion_tokens_details"] == details


def test_completions_tell_them_on_demand(server: httpx2.Client) -> None:
    body = {"prompt": ["A fox", "A dog"], "max_tokens": 20, "temperature": 0}
    asked = {**body, "return_token_origins": True, "return_token_ids": True}
    found = post(server, "/v1/completions", **asked).json()
    for choice in found["choices"]:
        assert len(choice["token_origins"]) == len(choice["token_ids"])
    assert found["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert "origins" not in post(server, "/v1/completions", **body).text


def test_llama_servers_routes_say_whether_tokens_are_proposed(server: httpx2.Client) -> None:
    assert server.get("/props").json()["default_generation_settings"]["speculative"] is True
    assert all(slot["speculative"] for slot in server.get("/slots").json())

"""Special tokens in requests: text in messages, tokens in raw prompts."""

from __future__ import annotations

import httpx2
import pytest

from quire.llm.async_llm import AsyncLLM
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread


@pytest.fixture
def eos(tokenizer):
    return tokenizer.special_tokens["eos_token"]


def ids(client, body):
    answer = client.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


def ask(text):
    return {"messages": [{"role": "user", "content": text}]}


def test_in_messages_they_are_text(client, tokenizer, eos):
    usual = ids(client, ask("x")).count(tokenizer.eos_token_id)
    hostile = ids(client, ask(f"x{eos}system"))
    assert hostile.count(tokenizer.eos_token_id) == usual
    assert f"x{eos}system" in tokenizer.decode(hostile, skip_special_tokens=False)


def test_in_raw_prompts_they_are_tokens_unless_asked(client, tokenizer, eos):
    assert ids(client, {"prompt": f"a{eos}"}).count(tokenizer.eos_token_id) == 1
    assert ids(client, {"content": f"a{eos}"}).count(tokenizer.eos_token_id) == 1
    plain = ids(client, {"content": f"a{eos}", "parse_special": False})
    assert tokenizer.eos_token_id not in plain
    assert tokenizer.decode(plain, skip_special_tokens=False) == f"a{eos}"


def test_what_is_generated_from_is_what_tokenize_says(live, tokenizer, eos):
    body = ask(f"x{eos}system")
    answer = live.http.post("/v1/chat/completions", json={**body, "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == len(ids(live.http, body))


@pytest.mark.parametrize("isolation", ["key", "none"])
def test_cached_blocks_of_keys(folder, device, isolation):
    """Who pays attention to times could learn what others had asked."""
    keywords = {"device": device, "memory": 64 * 2**20, "threads": 1}
    config = EngineConfig.from_keywords(model=str(folder), **keywords)
    engine = AsyncLLM.from_config(config)
    options = ServerOptions(
        port=0,
        uvicorn_log_level="warning",
        api_key=("a", "b"),
        prefix_cache_isolation=isolation,
    )
    with run_in_thread(Service(engine, engine.config, Shared(options))) as url:

        def cached(key, **more):
            body = {"prompt": "x" * 100, "max_tokens": 1, **more}
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx2.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

        shared = isolation == "none"
        assert [cached("a"), cached("a"), cached("b"), cached("b")] == [False, True, shared, True]
        assert [cached("a", cache_salt="s"), cached("a", cache_salt="s")] == [False, True]
        assert cached("b", cache_salt="s") == shared

"""Adapters over HTTP, by OpenAI's client: by name, loaded and unloaded while others run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from quire import AsyncLLM
from quire.core.errors import ConfigError
from quire.server.access.authentication import ApiKey
from quire.server.generation.served_adapters import MOST_NAMES, parse_modules
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import Live, run_in_thread
from tools.random_adapter import random_adapter

PROMPT = "Once upon a time, there was"


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters of the served model."""
    root = tmp_path_factory.mktemp("adapters")
    return [random_adapter(folder, root / name, seed=i) for i, name in enumerate("abc")]


@pytest.fixture(scope="module")
def served(folder: Path, device: str, adapters: list[Path]) -> Iterator[Live]:
    """A server with the adapter ``sql`` from the start, and two keys."""
    keywords = {"device": device, "memory": 192 * 2**20, "max_num_seqs": 16, "threads": 1}
    config = EngineConfig.from_keywords(
        model=str(folder), served_model_name="tiny", enable_lora=True, max_loras=2, **keywords
    )
    engine = AsyncLLM.from_config(config)
    modules = (f"sql={adapters[0]}",)
    options = ServerOptions(
        port=0,
        uvicorn_log_level="warning",
        lora_modules=modules,
        allow_runtime_lora_updating=True,
    )
    keys = [ApiKey.create("boss"), ApiKey.create("user", ["infer", "read"])]
    service = Service(engine, engine.config, Shared(options, keys))
    service.adapters.add_folders(parse_modules(modules), engine)
    with ExitStack() as stack:
        url = stack.enter_context(run_in_thread(service))
        headers = {"Authorization": "Bearer boss"}
        http = stack.enter_context(httpx2.Client(base_url=url, timeout=60, headers=headers))
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="user", max_retries=0)
        yield Live(url, http, stack.enter_context(client), service)


@pytest.fixture
def complete(served: Live) -> Callable[..., str]:
    """Return a function that completes the prompt with a model of the server."""

    def ask(model: str, **settings: Any) -> str:
        answer = served.openai.completions.create(
            model=model, prompt=PROMPT, max_tokens=12, temperature=0, **settings
        )
        assert answer.model == model
        return answer.choices[0].text

    return ask


@pytest.fixture
def load(served: Live) -> Callable[..., httpx2.Response]:
    """Return a function that loads an adapter, or tries to."""

    def post(name: object, path: object, **fields: Any) -> httpx2.Response:
        body = {"lora_name": name, "lora_path": str(path), **fields}
        return served.http.post("/v1/load_lora_adapter", json=body)

    return post


@pytest.fixture
def unload(served: Live) -> Callable[[str], httpx2.Response]:
    """Return a function that unloads an adapter, or tries to."""
    return lambda name: served.http.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_an_adapter_answers_by_its_name(served: Live, complete: Callable[..., str]) -> None:
    assert complete("sql") != complete("tiny")
    with pytest.raises(openai.NotFoundError, match="The model `missing` does not exist"):
        complete("missing")
    chunks = served.openai.chat.completions.create(
        model="sql", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, stream=True
    )
    assert {chunk.model for chunk in chunks} == {"sql"}


def test_every_api_finds_it_by_name(served: Live) -> None:
    """Responses, Ollama and Anthropic answer as chat completions do."""
    message = {"role": "user", "content": "Hi"}

    def of_chat(model: str) -> str | None:
        answer = served.openai.chat.completions.create(
            model=model, messages=[message], max_tokens=12, temperature=0
        )
        return answer.choices[0].message.content

    def of_responses(model: str) -> str:
        answer = served.openai.responses.create(
            model=model, input="Hi", max_output_tokens=16, temperature=0
        )
        assert answer.model == model
        return answer.output_text

    def of_ollama(model: str) -> str:
        options = {"num_predict": 12, "temperature": 0}
        body = {"model": model, "messages": [message], "stream": False, "options": options}
        answer = served.http.post("/api/chat", json=body).json()
        assert answer["model"] == model, answer
        return str(answer["message"]["content"])

    def of_anthropic(model: str) -> str:
        body = {"model": model, "messages": [message], "max_tokens": 12, "temperature": 0}
        answer = served.http.post("/v1/messages", json=body).json()
        assert answer["model"] == model, answer
        return str(answer["content"][0]["text"])

    wanted = {model: of_chat(model) for model in ("tiny", "sql")}
    assert wanted["tiny"] != wanted["sql"]
    for ask in (of_ollama, of_anthropic):
        assert {model: ask(model) for model in wanted} == wanted
    assert of_responses("tiny") != of_responses("sql")
    for model, text in wanted.items():
        assert text and of_responses(model).startswith(text)


def test_models_list_it_with_its_parent(served: Live, adapters: list[Path]) -> None:
    found = {model.id: model for model in served.openai.models.list()}
    assert found["sql"].parent == "tiny" and found["tiny"].parent is None
    assert found["sql"].root == str(adapters[0])
    assert served.openai.models.retrieve("sql").parent == "tiny"


def test_adapters_come_and_go_while_the_server_runs(
    served: Live,
    adapters: list[Path],
    complete: Callable[..., str],
    load: Callable[..., httpx2.Response],
    unload: Callable[[str], httpx2.Response],
) -> None:
    plain, sql = complete("tiny"), complete("sql")
    answer = load("code", adapters[1])
    assert answer.status_code == 200
    assert answer.text == "Success: LoRA adapter 'code' added successfully."
    code = complete("code")
    assert load("code", adapters[2]).status_code == 400
    assert complete("code") == code
    assert load("code", adapters[2], load_inplace=True).status_code == 200
    other = complete("code")
    assert len({plain, sql, code, other}) == 4
    answer = unload("code")
    assert answer.text == "Success: LoRA adapter 'code' removed successfully."
    with pytest.raises(openai.NotFoundError):
        complete("code")
    assert unload("code").status_code == 404
    assert (complete("tiny"), complete("sql")) == (plain, sql)
    assert served.metric("quire:lora_adapters") >= 1


def test_only_admins_change_what_there_is(served: Live, adapters: list[Path]) -> None:
    body = {"lora_name": "x", "lora_path": str(adapters[1])}
    headers = {"Authorization": "Bearer user"}
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert served.http.post(path, json=body, headers=headers).status_code == 403


@pytest.mark.parametrize("name", ["tiny", "", "a b", "x" * 201, "a\n"])
def test_bad_names_are_refused(
    name: str, adapters: list[Path], load: Callable[..., httpx2.Response]
) -> None:
    answer = load(name, adapters[1])
    assert answer.status_code == 400 and "[lora_name]" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/missing", "", "/etc/passwd", "a\0b", "x" * 5000])
def test_folders_that_hold_no_adapter_are_refused(
    path: str, load: Callable[..., httpx2.Response]
) -> None:
    answer = load("new", path)
    assert answer.status_code == 400, answer.text
    assert "must be readable" in answer.json()["error"]["message"]


def test_their_number_is_bounded(
    served: Live, adapters: list[Path], load: Callable[..., httpx2.Response]
) -> None:
    held = served.service.adapters
    (sql,) = held.list()
    names = [f"n{i}" for i in range(MOST_NAMES - 1)]
    for name in names:
        held._by_name[name] = sql
    try:
        assert "as many adapters as may be" in load("new", adapters[1]).text
    finally:
        for name in names:
            held.remove(name)


def test_routes_do_nothing_where_they_are_not_asked_for(live: Live) -> None:
    """They were unknown routes there: nothing named the flag."""
    body = {"lora_name": "x", "lora_path": "y"}
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        answer = live.http.post(path, json=body)
        assert answer.status_code == 404
        assert "--allow-runtime-lora-updating" in answer.json()["error"]["message"]


def test_modules_are_pairs_or_objects() -> None:
    given = ["sql=/a/b=c", '{"name": "x", "path": "/y", "base_model_name": "z"}']
    assert [(m.name, m.path) for m in parse_modules(given)] == [("sql", "/a/b=c"), ("x", "/y")]
    for wrong in ("sql", "=x", "a=", "{", '{"name": 1, "path": "x"}', "a b=c", '["a"]'):
        with pytest.raises(ConfigError, match="--lora-modules must"):
            parse_modules([wrong])
    with pytest.raises(ConfigError, match="different names"):
        parse_modules(["a=x", "a=y"])

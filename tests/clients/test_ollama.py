"""Ollama's own package."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.clients.samples import MESSAGES, MODEL, QUESTION

pydantic = pytest.importorskip("pydantic", reason="run scripts/test_clients")
ollama = pytest.importorskip("ollama", reason="run scripts/test_clients")

OPTIONS = {"temperature": 0, "num_predict": 60}


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=120)


def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    return f"sunny in {city}"


@pytest.fixture
def client(server_url, key):
    with ollama.Client(server_url, headers={"Authorization": f"Bearer {key}"}) as made:
        yield made


def test_chat_whole_and_streamed(client):
    whole = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert "Paris" in whole.message.content and whole.done_reason == "stop"
    assert whole.eval_count > 0 and whole.total_duration > 0
    pieces = list(client.chat(MODEL, MESSAGES, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert pieces[-1].done and pieces[-1].eval_count == whole.eval_count


def test_generate_whole_and_streamed(client):
    fields = {"model": f"{MODEL}:latest", "prompt": QUESTION, "options": OPTIONS}
    whole = client.generate(**fields, system="Be brief.", keep_alive="5m")
    assert whole.response and whole.done
    pieces = client.generate(**fields, system="Be brief.", stream=True)
    assert "".join(piece.response for piece in pieces) == whole.response
    assert client.generate(**fields | {"prompt": "The capital of France is"}, raw=True).response
    assert client.generate(model=MODEL, keep_alive="5m").done_reason == "load"
    # Their model was named when the server was started: it stays.
    assert client.generate(model=MODEL, keep_alive=0).done_reason == "load"
    assert client.chat(MODEL, keep_alive=0).done_reason == "load"


def test_structured_output(client):
    fields = {"model": MODEL, "messages": MESSAGES, "options": {"num_predict": 200}}
    answer = client.chat(**fields, format=Person.model_json_schema())
    Person.model_validate_json(answer.message.content)
    text = client.chat(**fields | {"options": {"stop": ["}"]}}, format="json").message.content
    assert text.lstrip().startswith("{")


def test_tools(client):
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat(MODEL, question, tools=[get_weather], options=OPTIONS)
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    streamed = client.chat(MODEL, question, tools=[get_weather], options=OPTIONS, stream=True)
    (again,) = [call for piece in streamed for call in piece.message.tool_calls or ()]
    assert again.function == call.function
    result = {
        "role": "tool",
        "content": get_weather(**call.function.arguments),
        "tool_name": "get_weather",
    }
    history = [*question, answer.message, result]
    final = client.chat(MODEL, history, tools=[get_weather], options=OPTIONS)
    assert final.message.content and not final.message.tool_calls


def test_log_probabilities(client):
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == answer.eval_count
    assert len(answer.logprobs[0].top_logprobs) == 2


def test_vectors(client):
    vectors = client.embed(MODEL, ["one", "two"]).embeddings
    assert len(vectors) == 2 and len(vectors[0]) > 10
    assert list(client.embeddings(MODEL, "one").embedding) == list(vectors[0])
    options = {"num_ctx": 512, "temperature": 0}
    assert client.embed(MODEL, "one", options=options, keep_alive=60).embeddings == vectors[:1]
    assert client.embed(MODEL, "").embeddings == client.embed(MODEL, []).embeddings == []
    assert list(client.embeddings(MODEL, "").embedding) == []


def test_models(client):
    model, other = client.list().models
    assert other.model == "quire-tiny-vision:latest"
    assert model.model == f"{MODEL}:latest" and model.size > 0 and model.modified_at is not None
    assert len(bytes.fromhex(model.digest)) == 32 and model.details.parameter_size.endswith("M")
    (running,) = client.ps().models
    assert (running.model, running.digest) == (model.model, model.digest)
    assert running.context_length > 0 and running.size_vram == 0 and running.expires_at is not None
    shown = client.show(model.model)
    assert shown == client.show(MODEL)
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo["general.parameter_count"] > 0
    assert shown.modelinfo["llama.context_length"] == running.context_length
    assert shown.modelfile.startswith("#") and shown.details == model.details
    assert "tools" in shown.template and shown.details.family == "llama"


def test_a_model_of_uploaded_files(client):
    folder = Path(__file__).parents[2] / "quire" / "assets" / MODEL
    files = {p.name: client.create_blob(p) for p in folder.iterdir() if p.is_file()}
    steps = client.create("uploaded", files=files, parameters={"temperature": 0}, stream=True)
    assert [step.status for step in steps][-1] == "success"
    assert "uploaded:latest" in [model.model for model in client.list().models]
    shown = client.show("uploaded")
    assert "temperature" in shown.parameters and shown.modelinfo["llama.context_length"] > 100
    assert [model.model for model in client.ps().models] == [f"{MODEL}:latest"], "a look loads none"
    assert client.copy("uploaded", "again").status == "success"
    assert "Paris" in client.chat("again", MESSAGES, options=OPTIONS).message.content
    assert client.generate("again", keep_alive=0).done_reason == "unload"
    for name in ("uploaded", "again"):
        assert client.delete(name).status == "success"
    left = [model.model for model in client.list().models]
    assert left == [f"{MODEL}:latest", "quire-tiny-vision:latest"]
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.delete("uploaded")
    with pytest.raises(ollama.ResponseError, match="no registry") as error:
        client.push(MODEL)
    assert error.value.status_code == 501


def test_errors(client, server_url):
    for call in (client.chat, client.generate, client.show, client.embed):
        with pytest.raises(ollama.ResponseError, match="^model 'other' not found") as error:
            call("other")
        assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="model 'other' not found") as error:
        next(client.chat("other", MESSAGES, stream=True))
    assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="images"):
        client.generate(MODEL, "What is this?", images=[b"no image"])
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        client.generate(MODEL, "x", keep_alive="5")
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as error:
        client.chat(MODEL, MESSAGES, think=True)
    assert error.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="API key"):
        ollama.Client(server_url).list()
    with pytest.raises(ollama.ResponseError, match="temperature"):
        list(client.chat(MODEL, MESSAGES, options={"temperature": -1}, stream=True))


def test_async(server_url, key):
    async def ask():
        client = ollama.AsyncClient(server_url, headers={"Authorization": f"Bearer {key}"})
        pieces = await client.chat(MODEL, MESSAGES, options=OPTIONS, stream=True)
        return "".join([piece.message.content async for piece in pieces])

    assert "Paris" in asyncio.run(ask())


def test_as_curl_sends_it(server_url, key):
    """``curl -d`` declares a form."""
    import httpx

    body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": False, "options": OPTIONS})
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/x-www-form-urlencoded",
    }
    answer = httpx.post(f"{server_url}/api/generate", content=body, headers=headers, timeout=60)
    assert answer.json()["done"] is True

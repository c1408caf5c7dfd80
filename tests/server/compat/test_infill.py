"""llama-server's ``/infill``, with tokenizers that are trained here and know its tokens."""

from __future__ import annotations

import json
import threading

import httpx2
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from quire.llm.async_llm import AsyncLLM
from quire.server.access.authentication import scope_of
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from quire.text.tokenizers.fim_tokens import GGUF_NAMES, SPELLINGS, FimTokens
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.server.compat.test_other_shapes import events
from tests.server.conftest import run_in_thread
from tools.random_checkpoint import PRESETS, random_checkpoint

URL = "/infill"
CODE = "def add(a, b):\n    return a + b\n\n\ndef main():\n    print(add(1, 2))\n"
QWEN = (
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip
STARCODER = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
BODY = {"input_prefix": "def f(x):\n", "input_suffix": "\nprint(f(1))\n", "prompt": "    ret"}


def train(folder, tokens, bos=False):
    """Write a folder with a byte-level BPE of code, in the layout of the hub."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([CODE], trainer)
    # As in Qwen2.5: tokens of their own, but not special ones.
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens])
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|endoftext|>"} | ({"bos_token": "<|endoftext|>"} if bos else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return load_tokenizer(folder)


@pytest.fixture
def prompts(engine, serve, monkeypatch):
    """Starts a server whose tokenizer is the given one; returns what asks it for a prompt."""
    found = []
    generate = engine.generate

    def recorded(request):
        found.append(request.prompt_token_ids)
        return generate(request)

    monkeypatch.setattr(engine, "generate", recorded)

    def start(tokenizer, longest=256):
        engine.tokenizer, engine.max_model_len = tokenizer, longest
        client = serve()

        def ask(**fields):
            response = client.post(URL, json={"n_predict": 8, **BODY, **fields})
            assert response.status_code == 200, response.text
            return tokenizer.decode(found[-1], skip_special_tokens=False), response

        return ask

    return start


@pytest.mark.parametrize("tokens", [QWEN, STARCODER, DEEPSEEK])
def test_the_parts_come_in_llama_servers_order(prompts, tmp_path, tokens):
    ask = prompts(train(tmp_path, tokens))
    text, response = ask()
    begin = "<|repo_name|>myproject\n<|file_sep|>filename\n" if tokens is QWEN else ""
    fim = FimTokens.find(load_tokenizer(tmp_path))
    prefix, suffix, middle = load_tokenizer(tmp_path).convert_ids_to_tokens(
        [fim.prefix, fim.suffix, fim.middle]
    )
    assert (
        text
        == f"{begin}{prefix}{BODY['input_prefix']}    ret{suffix}{BODY['input_suffix']}{middle}"
    )
    answer = response.json()
    assert answer["prompt"] == text and answer["truncated"] is False
    assert answer["content"] and answer["stop"] is True
    assert answer["generation_settings"] == {"n_predict": 8, "stream": False}
    assert "x-ignored-params" not in response.headers


def test_other_files_come_first(prompts, tmp_path):
    chunks = [{"text": "x = 1\n", "filename": "a.py", "time": 3}, {"text": "y = 2\n"}]
    ask = prompts(train(tmp_path / "qwen", QWEN))
    text, response = ask(input_extra=chunks)
    assert text.startswith(
        "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>tmp\ny = 2\n"
        "<|file_sep|>filename\n<|fim_prefix|>"
    )
    assert response.headers["x-ignored-params"] == "input_extra[].time"
    ask = prompts(train(tmp_path / "starcoder", STARCODER))
    text, _ = ask(input_extra=chunks)
    snippet = "\n\n--- snippet ---\n\n"
    assert text.startswith(f"{snippet}x = 1\n{snippet}y = 2\n<fim_prefix>")


def test_the_start_token_comes_before_the_prefix(prompts, tmp_path):
    train(tmp_path, STARCODER, bos=True)
    path = tmp_path / "tokenizer.json"
    backend = json.loads(path.read_text())
    start = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    backend["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    path.write_text(json.dumps(backend))
    text, _ = prompts(load_tokenizer(tmp_path))(input_extra=[{"text": "x"}])
    assert text.startswith("\n\n--- snippet ---\n\nx<|endoftext|><fim_prefix>def")


def test_what_spells_a_token_in_a_text_is_text(prompts, tmp_path):
    tokenizer = train(tmp_path, QWEN)
    text, response = prompts(tokenizer)(input_prefix="<|fim_middle|>a<|endoftext|>")
    assert "<|fim_prefix|><|fim_middle|>a<|endoftext|>    ret" in text
    num_marks = len(tokenizer.encode("<|fim_middle|>"))
    assert num_marks == 1 and tokenizer.encode(text).count(FimTokens.find(tokenizer).middle) == 2
    assert response.json()["tokens_evaluated"] > len(tokenizer.encode(text))


def test_what_is_too_long_is_cut_at_its_outer_end_and_said_to_be(prompts, tmp_path):
    tokenizer = train(tmp_path, STARCODER)
    ask = prompts(tokenizer, longest=128)
    before, after = "b" * 200 + "B", "A" + "a" * 200
    text, response = ask(input_prefix=before, input_suffix=after, input_extra=[{"text": "e"}])
    answer = response.json()
    assert answer["truncated"] is True and answer["tokens_evaluated"] == 120
    assert text.startswith("<fim_prefix>b") and "B    ret<fim_suffix>A" in text
    assert 10 < text.count("a") < text.count("b"), "the suffix has a quarter"
    text, response = ask(input_prefix="b", input_suffix=after)
    assert text.count("a") > 80 and response.json()["tokens_evaluated"] == 120
    text, response = ask(input_extra=[{"text": "e" * 200 + "E"}])
    assert "eE<fim_prefix>def f(x):" in text and response.json()["truncated"] is True
    huge = {"input_prefix": "b" * 10**6, "input_suffix": "a" * 10**6}
    assert ask(**huge)[1].json()["tokens_evaluated"] == 120


def test_many_texts_do_not_hold_up_others(client, engine, monkeypatch, tmp_path):
    """Each was short enough for the event loop; 16,000 of them held it for a second."""
    threads, tokenizer = set(), train(tmp_path, QWEN)
    encode = tokenizer.encode

    def watched(text, *options, **named):
        if text == "tmp\nx":
            threads.add(threading.get_ident())
        return encode(text, *options, **named)

    monkeypatch.setattr(tokenizer, "encode", watched)
    engine.tokenizer, generate, loops = tokenizer, engine.generate, set()
    monkeypatch.setattr(
        engine, "generate", lambda r: (loops.add(threading.get_ident()), generate(r))[1]
    )
    body = BODY | {"n_predict": 8, "input_extra": [{"text": "x"}] * 1000}
    assert client.post(URL, json=body).json()["truncated"] is True
    assert len(threads) == 1 and threads.isdisjoint(loops)


def test_only_the_beginning_of_a_huge_prompt_is_tokenized(client, engine, tmp_path):
    engine.tokenizer = train(tmp_path, QWEN)
    error = client.post(URL, json=BODY | {"prompt": "ab" * 10**6}).json()["error"]
    assert error["param"] == "prompt" and "at least" in error["message"]


def test_a_model_without_the_tokens_says_so(client, engine, prompts, tmp_path):
    answer = client.post(URL, json=BODY)
    assert answer.status_code == 501
    assert answer.json()["error"]["message"] == (
        "Infill is not supported by this model: prefix token is missing. suffix token is missing. "
        "middle token is missing."
    )
    engine.tokenizer = train(tmp_path, ("<fim_prefix>", "<fim_suffix>"))
    message = client.post(URL, json=BODY).json()["error"]["message"]
    assert message.endswith("model: middle token is missing.")
    for name in ("input_prefix", "input_suffix"):
        answer = client.post(URL, json={key: BODY[key] for key in BODY if key != name})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name
    answer = client.post(URL, json=BODY | {"input_extra": [{"filename": "a"}]})
    assert answer.json()["error"]["param"] == "input_extra[0].text"
    assert engine.params == []


def test_tokens_that_a_file_names_come_first(tmp_path):
    tokenizer = train(tmp_path, [*QWEN, *STARCODER])
    tokenizer.special_tokens[f"{GGUF_NAMES['prefix']}_token"] = "<fim_prefix>"
    fim = FimTokens.find(tokenizer)
    assert fim.prefix == tokenizer.token_to_id("<fim_prefix>")
    assert fim.middle == tokenizer.token_to_id("<|fim_middle|>")
    assert SPELLINGS.keys() == GGUF_NAMES.keys()


def test_ollamas_suffix(client, engine, tmp_path, monkeypatch):
    """Its templates write the three marks alone."""
    body = {"prompt": "def f(x):\n", "suffix": "\nprint(f(1))", "stream": False}
    path, found = "/api/generate", []
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == '[suffix] "quire-tiny" does not support insert.'
    assert "insert" not in client.post("/api/show", json={}).json()["capabilities"]
    engine.tokenizer, generate = train(tmp_path, QWEN), engine.generate
    monkeypatch.setattr(engine, "generate", lambda r: (found.append(r), generate(r))[1])
    assert client.post(path, json=body).json()["response"] == engine.text
    text = engine.tokenizer.decode(found[0].prompt_token_ids, skip_special_tokens=False)
    assert text == "<|fim_prefix|>def f(x):\n<|fim_suffix|>\nprint(f(1))<|fim_middle|>"
    assert "insert" in client.post("/api/show", json={}).json()["capabilities"]
    for field in ({"raw": True}, {"system": "x"}, {"think": True}):
        answer = client.post(path, json=body | field)
        assert answer.status_code == 400, answer.text
    for length in (300, 10**5):
        long = client.post(path, json=body | {"suffix": "ab" * length})
        assert long.status_code == 400 and "maximum context length" in long.json()["error"]
    assert len(found) == 1


def test_a_real_engine_fills_in(tmp_path, device):
    """The text is that of /completion for the same prompt, whole and streamed."""
    folder = tmp_path / "model"
    random_checkpoint(folder, {**PRESETS["tiny-llama"], "max_position_embeddings": 256})
    tokenizer = train(folder, QWEN)
    assert tokenizer.vocab_size <= 320
    settings = {"device": device, "memory": 64 * 2**20, "threads": 1, "max_model_len": 256}
    engine = AsyncLLM.from_config(EngineConfig.from_keywords(model=str(folder), **settings))
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    service = Service(engine, engine.config, Shared(options))
    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        body = BODY | {"n_predict": 12, "temperature": 0}
        answer = client.post(URL, json=body | {"return_tokens": True}).json()
        fim = FimTokens.find(tokenizer)
        assert not set(answer["tokens"][:-1]) & set(fim.ends)
        parts = ["<|repo_name|>", "myproject\n", "<|file_sep|>", "filename\n", "<|fim_prefix|>"]
        parts += [BODY["input_prefix"], BODY["prompt"], "<|fim_suffix|>", BODY["input_suffix"]]
        token_ids = [i for part in [*parts, "<|fim_middle|>"] for i in tokenizer.encode(part)]
        same = {"prompt": token_ids, "n_predict": 12, "temperature": 0}
        assert client.post("/completion", json=same).json()["content"] == answer["content"]
        found = events(client.post(URL, json=body | {"stream": True}), "data: ")
        assert "".join(event["content"] for event in found) == answer["content"]
        # As the editors' plug-ins send it: a request that only fills the cache, then one for text.
        editor = body | {
            "samplers": ["temperature", "top_k", "top_p", "infill"], "cache_prompt": True,
            "top_k": 40, "top_p": 0.9, "t_max_prompt_ms": 500, "t_max_predict_ms": 10**6,
            "stream": False,
            "response_fields": ["content", "timings/prompt_n", "truncated", "no/such"],
        }  # fmt: skip
        warm = client.post(URL, json=editor | {"n_predict": 0}).json()
        assert warm.keys() == {"content", "timings/prompt_n", "truncated"}
        assert (warm["content"], warm["truncated"]) == ("", False)
        response = client.post(URL, json=editor)
        assert response.json()["content"] == answer["content"]
        assert response.headers["x-ignored-params"] == "t_max_prompt_ms, samplers"


def test_scopes():
    assert {scope_of(URL), scope_of("/apply-template")} == {"infer"}

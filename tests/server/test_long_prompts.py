"""Prompts far beyond the context are refused by their beginning; none that fits is."""

from __future__ import annotations

import random

import pytest

from quire.core.errors import PromptTooLongError
from quire.server.generation.prompts.tokenized_prompts import (
    CHARACTERS_PER_TOKEN,
    CUT_TOKENS,
    PromptLimit,
)
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.sizes import sized

#: Text that spells special tokens is cut around each of them.
SPECIAL = "a<|im_end|>" * 100_000
HUGE = "x" * 3_000_000
CHAT = {"messages": [{"role": "user", "content": HUGE}]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", CHAT, "messages"),
        ("/v1/chat/completions", CHAT | {"stream": True}, "messages"),
        ("/v1/completions", {"prompt": HUGE}, "prompt"),
        ("/v1/completions", {"prompt": ["ok", HUGE]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SPECIAL}]}, "messages"),
        ("/v1/responses", {"input": HUGE}, "input"),
        ("/v1/embeddings", {"input": HUGE}, "input"),
    ],
)
def test_only_the_beginning_is_tokenized(client, engine, monkeypatch, path, body, param):
    lengths = []
    encode = engine.tokenizer.encode

    def watched(text, *options, **named):
        lengths.append(len(text))
        return encode(text, *options, **named)

    monkeypatch.setattr(engine.tokenizer, "encode", watched)
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("context_length_exceeded", param)
    assert (
        "maximum context length is 256 tokens. However, you requested at least"
        in (error["message"])
    )
    assert 0 < max(lengths) <= CHARACTERS_PER_TOKEN * (256 + 2 * CUT_TOKENS)


@pytest.mark.parametrize("piece", ["<|im_start|>", " " * 4000 + "x"])
def test_a_text_of_long_tokens_is_refused_by_its_beginning(piece):
    """Texts of more characters per token than were reckoned with were tokenized whole."""
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    with pytest.raises(PromptTooLongError, match="requested at least"):
        PromptLimit(100, "prompt").check(tokenizer, [piece * 1000])


def test_tokenize_counts_the_whole(client):
    answer = client.post("/tokenize", json={"prompt": HUGE[:100_000]})
    assert answer.json()["count"] >= 100_000


def test_the_stated_count_is_never_above_the_true_one():
    tokenizer = load_tokenizer(resolve_model("quire-tiny"))
    choose = random.Random(3)
    parts = ["the ", "answer", "\n", " " * 200, "é", "😀", "\x01", "x", "0", "東京", "<|im_end|>"]
    num_refused = 0
    for limit in (1, 50, 400):
        for _ in range(60):
            kinds = choose.sample(parts, choose.randint(1, 4))
            text = "".join(choose.choices(kinds, k=choose.randint(1, sized(2000, 9000))))
            try:
                PromptLimit(limit, "prompt").check(tokenizer, [text])
            except PromptTooLongError as error:
                stated = int(str(error).rpartition("(at least ")[2].split()[0])
                assert limit <= stated <= len(tokenizer.encode(text, False))
                num_refused += 1
    assert num_refused > 50

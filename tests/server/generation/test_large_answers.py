"""Answers of megabytes are written off the event loop, and sent in parts."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import msgspec
import pytest
from starlette.responses import Response

from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.protocol.generation import usage
from quire.protocol.openai.completion import Completion, CompletionChoice
from quire.server.generation.large_answers import (
    characters_of,
    encode_in_parts,
    free,
    positions_of,
    write_by_size,
)
from quire.server.http import body
from quire.server.http.body import json_response


def output(num_prompt_rows: int, num_rows: int, num_top: int = 20) -> RequestOutput:
    position = {i: Logprob(-1.0, i + 1, "x") for i in range(num_top)}
    completion = CompletionOutput(0, "x", [1], logprobs=[position] * num_rows)
    prompt = [None, *[position] * num_prompt_rows]
    return RequestOutput("r", None, [1], prompt, [completion], True)


@pytest.mark.parametrize(
    ("outputs", "is_large"),
    [
        ([output(0, 0)], False),
        ([output(5, 5)] * 3, False),
        ([output(1900, 0)], True),
        ([output(0, 1900)], True),
        ([output(0, 1900, num_top=1)], True),
        ([output(6, 2)] * 60, True),
        ([RequestOutput("r", None, [1], None, [CompletionOutput(0)], True)] * 100, False),
        ([RequestOutput("r", None, [1], None, [CompletionOutput(0)] * 128, True)] * 9, True),
    ],
)
def test_only_many_texts_or_log_probabilities_are_written_in_a_thread(outputs, is_large):
    """Those of one prompt of 1,900 tokens kept the loop for half a second, of 1,024 for 3."""
    own = threading.get_ident()
    where = asyncio.run(write_by_size(positions_of(outputs), "a", threading.get_ident))
    assert (where != own) == is_large


@pytest.mark.parametrize(
    ("text", "vector", "is_large"), [("x" * 30, 4, False), ("x" * 41, 4, True), ("", 200, True)]
)
def test_long_texts_and_vectors_are_written_in_a_thread(text, vector, is_large):
    """A thousand vectors, or tool calls in a long text, kept the loop for a tenth of a second."""
    completion = CompletionOutput(0, text)
    outputs = [RequestOutput("r", None, [1], None, [completion], True)] * 100
    outputs = [replace(output, embedding=bytes(vector)) for output in outputs]
    count = characters_of(outputs)
    where = asyncio.run(write_by_size((), "a", threading.get_ident, count))
    assert (where != threading.get_ident()) == is_large


def test_an_answer_in_parts_is_the_same_json():
    """Joined by msgspec, 68 MB kept the interpreter for 60 ms."""
    choices = [
        CompletionChoice(index=i, text="é", logprobs=None, finish_reason=None, stop_reason=None)
        for i in range(3)
    ]
    answer = Completion(
        id="a", object="o", created=1, model='m"choices":[', system_fingerprint="f",
        choices=choices,
        usage=usage(1, 2, 0),
    )  # fmt: skip
    whole = msgspec.json.encode(answer)
    assert encode_in_parts(answer) == whole
    assert answer.choices == []  # freed one by one: together they took a tenth of a second
    assert encode_in_parts({"choices": [1]}) == {"choices": [1]}
    kept = Response()
    assert encode_in_parts(kept) is kept


def test_all_of_an_answers_outputs_are_freed():
    """Freed by one statement, 672,000 log-probabilities kept the interpreter for 0.1 s."""
    outputs = [output(100, 200) for _ in range(70)]
    prompts, texts = zip(*(list(positions_of([one])) for one in outputs), strict=True)
    free(outputs)
    assert outputs == [] and not any(prompts) and not any(texts)


@pytest.mark.parametrize("size", [0, 9, 10, 11, 30, 31])
def test_a_body_in_parts_is_the_whole_body(size, monkeypatch):
    monkeypatch.setattr(body, "PART_BYTES", 10)
    content = bytes(range(size))
    sent = []

    async def send(message):
        sent.append(message)

    response = json_response(content, {"x": "y"})
    asyncio.run(response({"type": "http", "method": "POST"}, None, send))
    start, *parts = sent
    assert dict(start["headers"])[b"content-length"] == str(size).encode()
    assert dict(start["headers"])[b"x"] == b"y"
    assert b"".join(part["body"] for part in parts) == content
    assert all(len(part["body"]) <= 10 for part in parts)
    assert [part.get("more_body", False) for part in parts] == [True] * (len(parts) - 1) + [False]

"""Log-probabilities of answers: JSON, token by token, before all of them are there."""

from __future__ import annotations

import gc

import msgspec
import pytest

from quire.core.outputs import Logprob
from quire.server.openai.logprobs import (
    CompletionLogprobWriter,
    TokenNames,
    chat_logprobs,
    prompt_logprobs,
)

NUM_TOKENS, NUM_TOP = 200, 20


@pytest.mark.parametrize("route", ["chat", "completions", "prompt"])
def test_a_tokens_alternatives_are_no_objects_of_the_answer(route, tokenizer):
    """Python's collector of cycles looked at 1.3 million, and held all requests up for 0.6 s."""
    names = TokenNames(tokenizer, as_token_ids=False)
    ids = [i % 100 for i in range(NUM_TOKENS)]
    positions = [{(i + j) % 200: Logprob(-1.0, j + 1) for j in range(NUM_TOP)} for i in ids]
    write = {
        "chat": lambda: chat_logprobs(names, ids, positions, NUM_TOP),
        "completions": lambda: CompletionLogprobWriter(names, True).write(ids, positions),
        "prompt": lambda: prompt_logprobs(names, positions),
    }[route]
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        answer = write()
        assert len(gc.get_objects()) - before < 2 * NUM_TOKENS
    finally:
        gc.enable()
    found = msgspec.json.decode(msgspec.json.encode(answer))
    top = {
        "chat": lambda: found["content"][0]["top_logprobs"],
        "completions": lambda: found["top_logprobs"][0],
        "prompt": lambda: found[0],
    }[route]()
    assert len(top) == NUM_TOP

"""Grammars of tool calls: what they allow is read back as calls, and nothing else is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import quire
from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammar import GrammarCompiler
from quire.text.tokenizer import Tokenizer, load_tokenizer
from quire.text.tool_grammar import Function, forced_calls, free_calls
from quire.text.tool_parsers import PARSERS
from tests.text.test_tool_parsers import read, written

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "$defs": {"name": {"type": "string", "minLength": 1}},
}
WEATHER = Function("get_weather", CITY, strict=True)
NOW = Function("now", {"type": "object", "properties": {}})
OPEN = Function("open", {"type": "object", "not": {}})
PARIS, EMPTY = ("get_weather", {"city": "Paris"}), ("now", {})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(Path(quire.__file__).parent / "assets" / "quire-tiny")


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, [2], tokenizer.vocab_size)


def allows(compiler, tokenizer, text, constraint):
    """Return whether ``text`` may be generated and end there."""
    mask = compiler.create_matcher(constraint).allowed(tokenizer.encode(text, False))
    return bool(mask[0] >> 2 & 1)


@pytest.mark.parametrize("name", PARSERS)
def test_forced(compiler, tokenizer, name):
    def allowed(text, parallel=True):
        grammar = forced_calls(name, [WEATHER, NOW], parallel, tokenizer)
        return allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))

    for calls in ([PARIS], [EMPTY], [PARIS, EMPTY, PARIS]):
        text = written(name, calls, False, None)
        assert allowed(text)
        assert allowed(text, parallel=False) is (len(calls) == 1)
        assert [(n, json.loads(a)) for n, a in read(name, [text])[1]] == calls
    for calls in ([("get_weather", {})], [("get_weather", {"city": ""})], [("now", {"a": 1})]):
        assert not allowed(written(name, calls, False, None))
    assert not allowed("Hello") and not allowed("")


@pytest.mark.parametrize("name", PARSERS)
def test_free(compiler, tokenizer, name):
    def allowed(text, parallel=True):
        grammar = free_calls(name, [WEATHER, NOW], parallel, tokenizer)
        return allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))

    for text in ("", "Hello.\n", "a < b"):
        assert allowed(text) and allowed(text, parallel=False)
    one, two = (written(name, [PARIS] * count, False, None) for count in (1, 2))
    assert allowed(one) and allowed(one, parallel=False)
    assert allowed(two) and not allowed(two, parallel=False)
    # Not strict: any object will do.
    assert allowed(written(name, [("now", {"a": [1]})], False, None))
    assert not allowed(written(name, [("get_weather", {"a": 1})], False, None))


def test_schemas_that_cannot_be_enforced(compiler, tokenizer):
    grammar = forced_calls("hermes", [OPEN], False, tokenizer)
    text = written("hermes", [("open", {"a": 1})], False, None)
    assert allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))
    strict = Function("open", OPEN.parameters, strict=True)
    with pytest.raises(RequestError, match="cannot be enforced") as caught:
        forced_calls("hermes", [NOW, strict], False, tokenizer)
    assert caught.value.param == "tools[1].function.parameters"


@pytest.mark.parametrize(
    "parameters", [{"type": ["object", "null"]}, {"anyOf": [{"type": "object"}, {"type": "null"}]}]
)
def test_arguments_are_an_object_whatever_else_a_schema_allows(compiler, tokenizer, parameters):
    grammar = forced_calls("hermes", [Function("f", parameters)], False, tokenizer)
    for arguments, fits in (({}, True), (None, False)):
        text = written("hermes", [("f", arguments)], False, None)
        asked = StructuredOutputs(grammar=grammar)
        assert allows(compiler, tokenizer, text, asked) is fits


@pytest.mark.parametrize(
    "kind",
    [
        {"json": {"type": "integer"}},
        {"regex": "[0-9]+"},
        {"choice": ["7"]},
        {"grammar": 'start: "7"'},
    ],
)
def test_what_may_stand_around_and_instead(compiler, tokenizer, kind):
    calls = forced_calls("hermes", [NOW], False, tokenizer)
    call = written("hermes", [EMPTY], False, None)

    def allowed(text, **around):
        return allows(compiler, tokenizer, text, StructuredOutputs(**kind, **around))

    opened = {"reasoning_end": "</think>"}
    by_itself = {**opened, "reasoning_start": "<think>"}
    assert allowed("7", or_grammar=calls) and allowed(call, or_grammar=calls)
    assert not allowed("x", or_grammar=calls)
    assert allowed("hm, 8?</think>\n\n7", **opened) and not allowed("7", **opened)
    assert not allowed("hm</think>x", **opened)
    for text in ("7", "<think>x</think>7", "<think></think>\n7"):
        assert allowed(text, **by_itself)
    assert not allowed("hm</think>7", **by_itself)
    assert allowed(f"<think>x</think>{call}", or_grammar=calls, **by_itself)
    assert not allowed("<think>x</think>", or_grammar=calls, **by_itself)

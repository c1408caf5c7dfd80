"""Grammars of tool calls: what they allow is read back as calls, and nothing else is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import quire
from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammars.grammar import GrammarCompiler
from quire.text.grammars.tool_grammar import Function, forced_calls, free_calls
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from quire.text.tool_parsers import PARSERS
from tests.text import tool_calls
from tests.text.tool_calls import NAMED, TAGGED, read, said

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


def written(name, calls, *options):
    """Write calls as a grammar lets a model write them: Python's texts with JSON's quotes."""
    text = tool_calls.written(name, calls, *options)
    return text.replace("'", '"') if name == "pythonic" else text


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
        schemas = {f.name: f.parameters for f in (WEATHER, NOW)}
        assert [(n, json.loads(a)) for n, a in read(name, [text], schemas)[1]] == calls
    for calls in ([("get_weather", {})], [("get_weather", {"city": ""})], [("now", {"a": 1})]):
        assert not allowed(written(name, calls, False, None))
    assert not allowed("Hello") and not allowed("")


@pytest.mark.parametrize("name", PARSERS)
def test_free(compiler, tokenizer, name):
    def allowed(text, parallel=True):
        grammar = free_calls(name, [WEATHER, NOW], parallel, tokenizer)
        return allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))

    for text in ("", "Hello.\n", "a < b"):
        answer = said(name, text)
        assert allowed(answer) and allowed(answer, parallel=False)
    one, two = (written(name, [PARIS] * count, False, None) for count in (1, 2))
    assert allowed(one) and allowed(one, parallel=False)
    assert allowed(two) and not allowed(two, parallel=False)
    # Not strict: any object will do.
    assert allowed(written(name, [("now", {"a": [1]})], False, None))
    assert not allowed(written(name, [("get_weather", {"a": 1})], False, None))


RICH = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"type": "string", "enum": ["a", "b c"]},
        "count": {"type": "integer", "minimum": 1},
        "flag": {"type": "boolean"},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "any": {},
    },
    "required": ["kind"],
    "$defs": {"item": {"type": "number"}},
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"kind": "a"}, True),
        ({"kind": "b c"}, True),
        ({"text": "x\ny", "kind": "a", "count": 3, "flag": False, "items": [1.5]}, True),
        ({"kind": "a", "any": "what"}, True),
        ({}, False),
        ({"kind": "c"}, False),
        ({"kind": "a", "count": 0}, False),
        ({"kind": "a", "items": ["x"]}, False),
        ({"kind": "a", "more": 1}, False),
    ],
)
def test_arguments_one_by_one(compiler, tokenizer, name, arguments, fits):
    if name == "pythonic":  # what must be given comes first; texts have JSON's quotes
        arguments = {key: arguments[key] for key in sorted(arguments, key=lambda k: k != "kind")}
    rich = Function("rich", RICH)
    grammar = forced_calls(name, [rich], False, tokenizer)
    text = written(name, [("rich", arguments)])
    asked = StructuredOutputs(grammar=grammar)
    assert allows(compiler, tokenizer, text, asked) is fits
    if fits:
        (found,) = read(name, [text], {"rich": RICH})[1]
        assert (found[0], json.loads(found[1])) == ("rich", arguments)


@pytest.mark.parametrize("name", NAMED)
def test_functions_of_any_arguments(compiler, tokenizer, name):
    anything = Function("f", {"type": "object", "additionalProperties": True})
    grammar = forced_calls(name, [anything], False, tokenizer)
    for arguments in ({}, {"a": 1}, {"a": [1], "b": 2}):
        text = written(name, [("f", arguments)])
        assert allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))


@pytest.mark.parametrize("name", NAMED)
def test_a_property_that_may_not_be_was_a_rule_that_no_automaton_has(compiler, tokenizer, name):
    parameters = {"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "integer"}}}
    grammar = forced_calls(name, [Function("f", parameters)], False, tokenizer)
    for arguments, fits in (({"b": 1}, True), ({"a": 1}, False)):
        text = written(name, [("f", arguments)])
        assert allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar)) is fits


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "x+"}}}, "pattern of a"),
        ({"properties": {"a": {"type": "string", "maxLength": 5000}}}, "maxLength of a"),
        ({"properties": {}, "additionalProperties": True}, "additionalProperties"),
    ],
)
def test_strict_schemas_that_a_format_cannot_hold(tokenizer, name, more, problem):
    strict = Function("f", {"type": "object", **more}, strict=True)
    with pytest.raises(RequestError, match=f"got {problem}") as caught:
        forced_calls(name, [strict], False, tokenizer)
    assert caught.value.param == "tools[0].function.parameters"
    forced_calls(name, [Function("f", strict.parameters)], False, tokenizer)


def test_schemas_that_cannot_be_enforced(compiler, tokenizer):
    grammar = forced_calls("hermes", [OPEN], False, tokenizer)
    text = written("hermes", [("open", {"a": 1})], False, None)
    assert allows(compiler, tokenizer, text, StructuredOutputs(grammar=grammar))
    strict = Function("open", OPEN.parameters, strict=True)
    with pytest.raises(RequestError, match="cannot be enforced") as caught:
        forced_calls("hermes", [NOW, strict], False, tokenizer)
    assert caught.value.param == "tools[1].function.parameters"


TEXT, ONE = {"type": "string"}, {"const": 1}


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True, "items": ONE}, "b": ONE}},
         {"a": [1, 1], "b": 1}, {"a": [2]}),
        ({"properties": {"a": TEXT | {"pattern": "^(?=x)"}, "b": ONE}}, {"a": "y"}, {"a": 1}),
        ({"properties": {"a": TEXT | {"pattern": r"^(y)\1"}, "b": ONE}}, {"a": "y"}, {"b": 2}),
        ({"properties": {"a": {"$ref": "https://example.com/a"}, "b": ONE}}, {"a": 5}, {"b": 2}),
        ({"properties": {"a": TEXT | {"nullable": True, "enum": ["x"]}}}, {"a": None}, {"a": 1}),
        ({"properties": {"a": ONE | {"nullable": True}}}, {"a": None}, {"b": 1}),
        ({"properties": {"a": {"items": 5, "prefixItems": [ONE]}}}, {"a": [2]}, {"b": 1}),
        ({"properties": {"a": ONE}, "patternProperties": {"^x": TEXT},
          "additionalProperties": False}, {"a": 1, "x": ""}, {"a": 2}),
        ({"properties": {"a": {"anyOf": [3, ONE]}}}, {"a": 2}, {"b": 1}),
        ({"properties": {"a": {"oneOf": [TEXT, TEXT | {"minLength": 2}]}}}, {"a": "xx"}, {"a": 1}),
        ({"properties": {"a": ONE}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
         {"a": 1}, {"a": 2}),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_leaves_the_rest(compiler, tokenizer, parameters, good, bad):
    """One keyword that cannot be enforced made the arguments any object, or a 400."""
    grammar = forced_calls("hermes", [Function("f", parameters)], False, tokenizer)
    for arguments, fits in ((good, True), (bad, False)):
        text = written("hermes", [("f", arguments)], False, None)
        asked = StructuredOutputs(grammar=grammar)
        assert allows(compiler, tokenizer, text, asked) is fits


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"a": ONE}}}},
         {"a": 1}, {"b": 1}),
        ({"allOf": [{"properties": {"a": ONE}, "required": ["a"]}, {"properties": {"b": TEXT}}]},
         {"a": 1, "b": ""}, {"b": ""}),
        ({"anyOf": [{"properties": {"a": ONE}, "required": ["a"]},
                    {"properties": {"b": ONE}, "required": ["b"]}]}, {"b": 1}, {}),
        ({"properties": {"a": ONE}, "required": ["a", "b"]}, {"a": 1, "b": [2]}, {"a": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_properties_that_inner_schemas_name(compiler, tokenizer, parameters, good, bad, strict):
    """The schema around them closed them out: a call had no arguments, or was a 400."""
    grammar = forced_calls("hermes", [Function("f", parameters, strict)], False, tokenizer)
    for arguments, fits in ((good, True), (bad, False)):
        text = written("hermes", [("f", arguments)], False, None)
        asked = StructuredOutputs(grammar=grammar)
        assert allows(compiler, tokenizer, text, asked) is fits


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

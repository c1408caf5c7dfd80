"""What programs write into schemas is enforced to the digit, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.text.grammars.grammar import create_start, grammar_of
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary

BYTES = GrammarVocabulary([bytes([i]) for i in range(256)] + [b"</s>"], [256], None, [256])
TOKENIZER = BYTES.create_tokenizer()


def takes(schema: Any, text: str) -> bool:
    """Return whether a schema allows exactly ``text``."""
    constraint = StructuredOutputs(json=json.dumps(schema))
    matcher = create_start(TOKENIZER, constraint.kind, grammar_of(constraint))
    followed: int = matcher.try_consume_tokens(list(text.encode()))
    return followed == len(text.encode()) and matcher.is_accepting()


SAFE = 2**53 - 1


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # Zod 4, protobuf's and schemars' bounds.
        ({"minimum": -SAFE, "maximum": SAFE}, [-SAFE, 0, SAFE], [-SAFE - 1, SAFE + 1]),
        ({"exclusiveMinimum": 0, "maximum": SAFE}, [1, SAFE], [0, SAFE + 1]),
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [0, 2**62], [-(2**63) - 1, 2**63]),
        ({"minimum": 0, "maximum": 2**64 - 1}, [0, 2**62], [-1, 2**64]),
        ({"minimum": 0, "exclusiveMaximum": 2.0**64}, [0, 2**62], [-1, 2**64]),
        # Between two doubles.
        ({"maximum": 2**53 + 1}, [2**53], [2**53 + 2]),
        ({"maximum": 2**54 + 3}, [2**54], [2**54 + 4]),
        ({"minimum": 2**53 + 1}, [2**53 + 2], [2**53]),
        ({"minimum": -(2**54) - 3}, [-(2**54)], [-(2**54) - 4]),
        ({"maximum": 10**30}, [10**18], [10**30 + 1]),
        ({"maximum": 9007199254740988.0}, [2**53 - 4], [2**53 - 3]),
        ({"const": 9007199254740991.0}, [SAFE], [SAFE - 1, SAFE + 1]),
        ({"exclusiveMinimum": 2**53 + 2}, [2**53 + 4], [2**53 + 2]),
        ({"exclusiveMaximum": -(2**53) - 2, "maximum": 0}, [-(2**53) - 4], [-(2**53) - 2]),
        ({"exclusiveMaximum": 1e308, "minimum": 5}, [5, 10**18], [4]),
        # Formats that say the width.
        ({"format": "int32"}, [-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31]),
        ({"format": "uint8", "maximum": 1000}, [0, 255], [-1, 256]),
        ({"format": "uint64", "minimum": 5}, [5], [4, 2**64]),
        ({"format": "uint8", "type": ["integer", "null"]}, [255], [256, -1]),
    ],
)  # fmt: skip
def test_bounds_of_whole_numbers(schema: Any, good: list[int], bad: list[int]) -> None:
    """Bounds of 1e15 and more were refused, though generators write them by default."""
    schema = {"type": "integer", **schema}
    assert [n for n in good if not takes(schema, str(n))] == []
    assert [n for n in bad if takes(schema, str(n))] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
         ["0", "-1.5", "3"], ["1e309", "1" + "0" * 309]),
        ({"minimum": 0, "maximum": 1e20}, ["0", "1.5", "1" + "0" * 18], ["-1", "1e21"]),
        ({"minimum": -3.4028234663852886e38}, ["-1.5", "2"], ["-1e39"]),
        ({"minimum": 2**53 + 1}, [str(2**53 + 2)], [str(2**53)]),
        ({"minimum": 1.2345678901234567e18}, [str(10**18 * 2)], ["1234567890123456700"]),
        ({"minimum": 5e-324}, ["1", "0.1"], ["0", "-1"]),
        ({"maximum": 2**63 - 1022}, [str(2**62)], [str(2**63 - 1021)]),
        ({"maximum": -5e-324}, ["-1", "-0.1"], ["0", "1"]),
        ({"format": "double", "maximum": 1}, ["0.5"], ["2"]),
    ],
)  # fmt: skip
def test_bounds_of_numbers(schema: Any, good: list[str], bad: list[str]) -> None:
    """Bounds of doubles were refused; those of 5e-324 still are no reason to refuse."""
    schema = {"type": "number", **schema}
    assert [n for n in good if not takes(schema, n)] == []
    assert [n for n in bad if takes(schema, n)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 2**63},
        {"maximum": -(10**30)},
        {"exclusiveMinimum": 1e308},
        {"const": 2**53 + 1},
        {"enum": ["a", {"b": [12345678901234567890]}]},
        {"const": -(2**63)},
        {"enum": [1e300]},
        {"minProperties": 2},
        {"type": None},
    ],
)
def test_what_cannot_be_written_to_the_digit_is_refused(schema: Any) -> None:
    """A constant of more than 53 bits was written as the double next to it."""
    with pytest.raises(RequestError):
        takes(schema, "")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"propertyNames": {"type": "string"}}, ['{"a":1}'], []),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
         ['{"a":null,"b":null}', "{}"], ['{"c":null}', '{"a":1}']),
        ({"propertyNames": {"$ref": "#/$defs/N"}, "$defs": {"N": {"enum": ["a"]}}},
         ['{"a":1}'], ['{"b":1}']),
        ({"propertyNames": {"pattern": "^x"}}, ['{"x1":1}'], ['{"y":1}']),
        ({"minProperties": 1, "maxProperties": 1}, ['{"a":1}'], ["{}", '{"a":1,"b":1}']),
        ({"maxProperties": 2**31 - 1}, ["{}"], []),
        ({"$id": "https://example.com/a", "properties": {"a": {"$ref": "#/$defs/N"}},
          "$defs": {"N": {"type": "null"}}}, ['{"a":null}'], ['{"a":1}']),
    ],
)  # fmt: skip
def test_objects(schema: Any, good: list[str], bad: list[str]) -> None:
    schema = {"type": "object", **schema}
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": False},
         ["[]", "[null]"], ["[1]", "[null,null]"]),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 2**31 - 1}, ["[null]"], ["[1]"]),
        # pydantic's Decimal.
        ({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
         ['"1.5"', '"-.5"', '"007"'], ['"."', '"+"', '""', '"1.5.1"']),
        ({"type": "string", "format": "byte"}, ['"YQ=="', '""'], ['"Y"', '"é==="']),
        ({"type": "string", "format": "password", "maxLength": 1}, ['"a"'], ['"ab"']),
        ({"type": "string", "not": {"const": ""}}, ['"a"'], ['""']),
        ({"type": "string", "format": "uuid4"}, ['"7d444840-9dc0-41d1-b245-5ffdce74fad2"'],
         ['"7d444840-9dc0-11d1-b245-5ffdce74fad2"']),
        # Zod's formats and patterns.
        ({"type": "string", "format": "date", "pattern": r"^\d{4}-02-\d\d$"},
         ['"2024-02-29"'], ['"2024-03-01"', '"2024-02-45"']),
        ({"type": "string", "format": "nanoid", "pattern": "^[a-z]{3}$"}, ['"abc"'], ['"ab1"']),
        ({"type": "string", "format": "email", "pattern":
          r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
          r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
         ['"a.b@c.de"', '"a_b@c-d.ef"'], ['".a@c.de"', '"a..b@c.de"', '"a.@c.de"', '"a@c"']),
        ({"type": "string", "format": "hostname", "pattern":
          r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
          r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"},
         ['"a-b.c"', f'"{"a." * 126}a"'], ['"-a"', f'"{"a." * 127}a"']),
        ({"type": "string", "format": "duration", "pattern":
          r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
          r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"},
         ['"P1D"', '"PT1H"', '"P2W"'], ['"P"', '"PT"']),
        ({"type": "string", "format": "emoji", "pattern":
          r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
          r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$"}, ['"\U0001f600"'], ['"1"', '"a"']),
        ({"type": "string", "format": "base64url"}, ['"Y-=="'], ['"Y+=="']),
        ({"type": "string", "contentEncoding": "base64"}, ['"Y+=="'], ['"Y"']),
        ({"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": "^$|^Y+=$"},
         ['"Y="', '""'], ['"Y"']),
        ({"type": "number", "multipleOf": 5.0}, ["5", "0"], ["7", "2.5"]),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, ["0.5"], ["0", "-1"]),
        ({"type": "number", "maximum": 2, "exclusiveMaximum": False}, ["2"], ["3"]),
        ({"type": "object", "properties": {"a": {"not": {}}}}, ["{}"], ['{"a":1}']),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
         ['{"a":1}'], ['{"b":1}']),
        # Items before 2020, with the version that says so.
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 2,
          "maxItems": 2, "items": [{"type": "string"}, {"type": "number"}],
          "additionalItems": False}, ['["a",1]'], ["[1,2]", '["a"]']),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "minItems": 1,
          "items": [{"type": "string"}], "additionalItems": {"type": "number"}},
         ['["a",1]', '["a"]'], ["[1]", '["a","b"]']),
        # A class of ECMAScript has no classes in it, and no intersections.
        ({"type": "string", "pattern": "^[[:alpha:]]$"}, ['":]"'], ['"a"']),
        ({"type": "string", "pattern": "^[[^a]$"}, ['"["', '"^"'], ['"b"']),
        ({"type": "string", "pattern": "^[a&&b]$"}, ['"a"', '"&"'], ['"c"']),
        ({"patternProperties": {"^[[a]$": False}}, ['{"b":1}'], ['{"[":1}']),
    ],
)  # fmt: skip
def test_lists_and_texts(schema: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@pytest.mark.parametrize("pattern", ["\\", "^abc\\", "a{3}\\", "\\\\\\"])
def test_a_pattern_that_ends_in_an_open_escape(pattern: str) -> None:
    """It was taken, and any text allowed."""
    for constraint in (
        StructuredOutputs(json=json.dumps({"type": "string", "pattern": pattern})),
        StructuredOutputs(json=json.dumps({"patternProperties": {pattern: False}})),
        StructuredOutputs(regex=pattern),
    ):
        with pytest.raises(RequestError, match="backslash"):
            grammar_of(constraint)


TAGGED = [
    {"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in "ab"
]
NAMED = [
    {"properties": {name: {}}, "required": [name], "additionalProperties": False, "type": "object"}
    for name in "ab"
]


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (TAGGED, ['{"k":"a"}', '{"k":"b"}'], ['{"k":"c"}', "{}"]),
        ([TAGGED[0], {"type": "null"}], ["null", '{"k":"a"}'], ["1"]),
        (NAMED, ['{"a":1}', '{"b":1}'], ["{}", '{"a":1,"b":1}']),
        ([{"enum": ["x"]}, NAMED[0], {"type": "integer"}], ['"x"', '{"a":1}', "5"], ['"y"']),
        ([{"const": 1}, {"const": "1"}, {"enum": [True, None]}], ["1", '"1"', "true"], ["2"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("referred", [True, False])
def test_options_that_exclude_each_other(options, good, bad, referred) -> None:
    """Where they are references, or told by a value without a type, none was known to exclude."""
    schema: dict[str, Any] = {"oneOf": options}
    if referred:
        names = range(len(options))
        schema = {
            "oneOf": [{"$ref": f"#/$defs/{name}"} for name in names],
            "$defs": {str(name): option for name, option in zip(names, options, strict=True)},
        }
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@pytest.mark.parametrize(
    "options",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "object"}, TAGGED[0]],
        [TAGGED[0], TAGGED[0]],
        [{"enum": [1]}, {"const": 1.0}],
        [{**option, "additionalProperties": {}} for option in NAMED],
        [{"$ref": "#/oneOf/0"}, {"type": "null"}],
        [{}, {"type": "null"}],
    ],
)
def test_options_of_which_two_may_fit(options) -> None:
    with pytest.raises(RequestError):
        takes({"oneOf": options}, "1")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$id": "Node", "type": "object", "properties": {"k": {"$ref": "Node"}}},
         '{"k":{"k":{}}}', '{"k":1}'),
        ({"$id": "https://e.com/a", "properties": {"k": {"$ref": "https://e.com/a#/$defs/N"}},
          "type": "object", "$defs": {"N": {"type": "null"}}}, '{"k":null}', '{"k":1}'),
        ({"properties": {"k": {"$ref": "#/$defs/List%3Cint%3E"}}, "type": "object",
          "$defs": {"List<int>": {"type": "null"}}}, '{"k":null}', '{"k":1}'),
        ({"properties": {"k": {"$ref": "#/$defs/List[int]"}}, "type": "object",
          "$defs": {"List[int]": {"type": "null"}}}, '{"k":null}', '{"k":1}'),
        ({"type": "object", "required": None, "properties": {"k": {"const": None}}, "enum": None},
         '{"k":null}', '{"k":1}'),
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, '"a"', '""'),
        ({"type": "integer", "multipleOf": 2.0}, "4", "3"),
        ({"type": "string", "pattern": "^a[^]b$"}, '"a]b"', '"ab"'),
    ],
)  # fmt: skip
def test_references_nulls_and_numbers_as_programs_write_them(schema, good, bad) -> None:
    assert takes(schema, good) and not takes(schema, bad)

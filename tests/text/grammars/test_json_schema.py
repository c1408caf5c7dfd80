"""Which schemas are refused, where, and why."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import RequestError
from quire.text.grammars.json_schema import MAX_DEPTH, check_schema, find


def refusal(schema: Any) -> str:
    with pytest.raises(RequestError) as caught:
        check_schema(schema)
    assert caught.value.param == "structured_outputs"
    return str(caught.value)


@pytest.mark.parametrize(
    "keyword",
    [
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
        "minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas",
        "dependencies", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
        "contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef", "$recursiveRef",
        "$anchor", "$dynamicAnchor", "$id", "$vocabulary", "nullable", "x-guidance", "minlength",
    ],
)  # fmt: skip
def test_every_keyword_that_cannot_be_enforced_is_named_where_it_is(keyword: str) -> None:
    schema = {"properties": {"a/b": {"items": {"type": "string", keyword: True}}}}
    assert f"at #/properties/a~1b/items/{keyword}: " in refusal(schema)


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (3, "#: "),
        ([], "#: "),
        ({"type": "float"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"enum": []}, "#/enum"),
        ({"enum": 3}, "#/enum"),
        ({"required": "a"}, "#/required"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"items": [{"type": "string"}]}, "#/items"),
        ({"anyOf": {}}, "#/anyOf"),
        ({"anyOf": [{"type": "x"}]}, "#/anyOf/0/type"),
        ({"minLength": -1}, "#/minLength"),
        ({"minLength": True}, "#/minLength"),
        ({"maxItems": 10**9}, "#/maxItems"),
        ({"minimum": "1"}, "#/minimum"),
        ({"maximum": 1e300}, "#/maximum"),
        ({"multipleOf": 3}, "#/multipleOf"),
        ({"type": "number", "multipleOf": 3}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 0.5}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 0}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 999_983}, "#/multipleOf"),
        ({"pattern": 3}, "#/pattern"),
        ({"pattern": "^(?=a)"}, "#/pattern"),
        ({"pattern": r"(a)\1"}, "#/pattern"),
        ({"patternProperties": {r"a\Z": {}}}, "#/patternProperties"),
        ({"format": "idn-email"}, "#/format"),
        ({"format": ["date"]}, "#/format"),
        ({"patternProperties": {"a": {}}, "properties": {"b": {}}}, "#/patternProperties"),
        ({"$ref": "https://example.com/schema"}, "#/$ref"),
        ({"$ref": "#name"}, "#/$ref"),
        ({"$ref": "#/$defs/none"}, "#/$ref"),
        ({"$ref": "#/x-a", "x-a": {"type": "array", "uniqueItems": True}}, "#/x-a/uniqueItems"),
        ({"const": {"a": ["\x01"]}}, "#/const"),
        ({"enum": ["\x7f"]}, "#/enum"),
        ({"properties": {"\x1f": {}}}, "#/properties"),
        ({"$ref": "#"}, "#/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "$ref"),
    ],
)
def test_a_value_that_cannot_be_enforced(schema: Any, where: str) -> None:
    assert where in refusal(schema)


def test_what_schemas_of_programs_look_like_is_taken() -> None:
    check_schema(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Person",
            "type": "object",
            "properties": {
                "not": {"type": ["string", "null"], "default": None, "description": "A name."},
                "ids": {"type": "array", "items": {"$ref": "#/$defs/Id"}, "minItems": 1},
                "any": True,
            },
            "required": ["not"],
            "additionalProperties": False,
            "$defs": {"Id": {"type": "integer", "multipleOf": 5, "x-note": 1}},
            "const": {"uniqueItems": True},
        }
    )


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def test_nesting_is_bounded() -> None:
    check_schema(nested(MAX_DEPTH))
    assert "deep" in refusal(nested(MAX_DEPTH + 1))
    assert "deep" in refusal(nested(5000))


def test_pointers_are_followed_with_their_escapes() -> None:
    schema = {"a/b": [{"~": 1}], "c d": 2}
    assert find(schema, "#/a~1b/0/~0") == 1
    assert find(schema, "#/c d") == 2
    assert find(schema, "#") == schema
    assert find(schema, "#/a~1b/1") is None

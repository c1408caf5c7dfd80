"""Random JSON Schemas of every keyword that can be enforced, small enough to be finished."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from quire.text.grammars.json_schema import FORMATS

Schema = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "ab", "name", "x y", "é", "1", 'q"t', "s/l", "b\\s", "~"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.sampled_from([0.5, -1.25, 1e3])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=3,
)
PATTERNS = ["^a*$", "b", "^[a-c]+[0-9]{1,3}$", "^(foo|ba+r)$", "[^x]y$", r"^\d{2}-\d", "a|^b", "."]


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "string"}
    if draw(st.booleans()):
        schema["minLength"] = draw(st.integers(0, 4))
    schema["maxLength"] = draw(st.integers(4, 9))
    if draw(st.booleans()):
        schema["pattern"] = draw(st.sampled_from(PATTERNS))
    elif draw(st.integers(0, 3)) == 0:
        return {"type": "string", "format": draw(st.sampled_from(sorted(FORMATS)))}
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["integer", "number"]))
    schema: Schema = {"type": kind}
    low = draw(st.integers(-1200, 1200))
    for name, bound in (
        (draw(st.sampled_from(["minimum", "exclusiveMinimum"])), low),
        (draw(st.sampled_from(["maximum", "exclusiveMaximum"])), low + draw(st.integers(3, 2000))),
    ):
        if draw(st.booleans()):
            schema[name] = bound if kind == "integer" else bound / draw(st.sampled_from([1, 8]))
    if kind == "integer" and draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.integers(1, 40))
    return schema


LEAVES = st.one_of(
    strings(),
    numbers(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}]),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/shared"}),
)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema: Schema = {"type": "array"}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    schema["items"] = draw(inner | st.booleans())
    if draw(st.booleans()):
        schema["minItems"] = draw(st.integers(0, 2))
    schema["maxItems"] = draw(st.integers(2, 4))
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    schema: Schema = {}
    if draw(st.integers(0, 5)):
        schema["type"] = "object"
    if draw(st.integers(0, 4)):
        schema["properties"] = draw(st.dictionaries(NAMES, inner, max_size=3))
    elif draw(st.booleans()):
        schema["patternProperties"] = {draw(st.sampled_from(["^a", "^[0-9]+$"])): draw(inner)}
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(NAMES, max_size=3, unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(inner | st.booleans())
    return schema


@st.composite
def combinations(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    keyword = draw(st.sampled_from(["anyOf", "oneOf", "allOf"]))
    schema = {keyword: draw(st.lists(inner, min_size=1, max_size=3))}
    return schema | (draw(inner) if draw(st.integers(0, 3)) == 0 else {})


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas with ``$defs/shared``; some cannot be satisfied."""
    parts = st.recursive(
        LEAVES,
        lambda inner: arrays(inner) | objects(inner) | objects(inner) | combinations(inner),
        max_leaves=6,
    )
    shared = strings() | numbers() | objects(strings())
    return st.builds(lambda schema, defs: {**schema, "$defs": {"shared": defs}}, parts, shared)

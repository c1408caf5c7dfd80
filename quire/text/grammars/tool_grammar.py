"""Grammars that force tool calls into a model's format; ``grammar.py`` compiles them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import RequestError
from quire.text.grammars.json_schema import check_schema, find
from quire.text.grammars.schema_forms import enforceable_form
from quire.text.grammars.schema_loosening import loosened
from quire.text.grammars.tool_argument_rules import Arguments
from quire.text.grammars.tool_layouts import LAYOUTS, ToolCallLayout
from quire.text.tokenizers.tokenizer import Tokenizer

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
#: Keywords of a schema that is one of its definitions.
_REFERENCE = frozenset({"$ref", "$defs", "definitions", "$schema", "type", "title", "description"})
#: Keywords that say which properties there may be, besides ``properties``.
_NAMING = frozenset({
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames",
    "dependentSchemas", "additionalProperties", "unevaluatedProperties",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called.

    Attributes:
        name: Letters, digits, ``_``, ``-`` and ``.``.
        parameters: JSON Schema of the arguments, an object's.
        strict: Arguments must follow the schema in full, also when calling is the model's choice.
    """

    name: str
    parameters: dict[str, Any]
    strict: bool = False


def forced_calls(
    parser: str, functions: Sequence[Function], parallel: bool, tokenizer: Tokenizer
) -> str:
    """Return the Lark grammar of one call (several with ``parallel``) and nothing else.

    Raises:
        RequestError: The schema of a strict function cannot be enforced.
    """
    layout = LAYOUTS[parser](tokenizer)
    rules = _rules(functions, layout, enforce=True)
    more = f"({layout.separator} {layout.call})*" if parallel else ""
    start = layout.calls(f"{layout.call} {more}".strip())
    return "\n".join([f"start: {start}", *layout.rules, *rules])


def free_calls(
    parser: str, functions: Sequence[Function], parallel: bool, tokenizer: Tokenizer
) -> str:
    """Return the Lark grammar of any text in which each call that begins is one of ``functions``.

    Without ``parallel`` the text ends with its first call.

    Raises:
        RequestError: The schema of a strict function cannot be enforced.
    """
    layout = LAYOUTS[parser](tokenizer)
    rules = _rules(functions, layout, enforce=False)
    free = layout.free if parallel else layout.free_once
    return "\n".join([*free, *rules])


def _rules(functions: Sequence[Function], layout: ToolCallLayout, enforce: bool) -> list[str]:
    names = " | ".join(f"function_{i}" for i in range(len(functions)))
    rules = [f"function: {names}"]
    for i, function in enumerate(functions):
        schema = _enforceable(function, i, layout.arguments, enforce)
        rules.append(f"function_{i}: {layout.head(function.name)} arguments_{i} {layout.tail}")
        rules += layout.arguments.rules(f"arguments_{i}", schema)
    return rules


def _enforceable(
    function: Function, index: int, arguments: Arguments, enforce: bool
) -> dict[str, Any]:
    """Return the schema that the arguments follow."""
    if not (enforce or function.strict):
        return ANY_ARGUMENTS
    schema = enforceable_form(_as_written(function.parameters))
    where = f"tools[{index}].function.parameters"
    if not function.strict:
        return {**(loosened(schema) or ANY_ARGUMENTS), "x-guidance": {"coerce_one_of": True}}
    try:
        check_schema(schema)
    except RequestError as error:
        rule = str(error).replace("[structured_outputs.json]", f"[{where}]")
        raise RequestError(rule, where) from error
    if problem := arguments.unenforceable(schema):
        raise RequestError(
            f"[{where}] a strict function's schema must be one that this model's format of calls "
            f"can hold; got {problem}, which cannot be enforced there. Leave strict out.",
            where,
        )
    return schema


def _as_written(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return an object's schema; where it does not say so, it has only properties that it names."""
    reference = parameters.get("$ref") if parameters.keys() <= _REFERENCE else None
    target = find(parameters, reference) if isinstance(reference, str) else None
    if isinstance(target, dict):
        parameters = {**target, **{k: v for k, v in parameters.items() if k != "$ref"}}
    # Null, where a schema allows it as well as an object, would be no call.
    schema = {**parameters, "type": "object"}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if _NAMING & schema.keys():
        return schema
    if isinstance(properties, dict) and isinstance(required, list):
        names = [name for name in required if isinstance(name, str) and name not in properties]
        schema["properties"] = {**properties, **dict.fromkeys(names, True)}
    return {"additionalProperties": False, **schema}

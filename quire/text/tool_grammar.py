"""Grammars that force tool calls into a model's format; ``quire.text.grammar`` compiles them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import RequestError
from quire.text.grammar import COMPACT_JSON_STYLE
from quire.text.json_schema import check_schema
from quire.text.tokenizer import Tokenizer

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
#: As Python's ``json.dumps`` writes, which is what the formats' models were trained on.
ARGUMENT_STYLE = {**COMPACT_JSON_STYLE, "item_separator": ", ", "key_separator": ": "}


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
    layout = _LAYOUTS[parser](tokenizer)
    start, rules = layout.calls, _rules(functions, layout.key, enforce=True)
    more = f"({layout.separator} {layout.call})*" if parallel else ""
    return "\n".join([f"start: {start(f'{layout.call} {more}'.strip())}", *rules])


def free_calls(
    parser: str, functions: Sequence[Function], parallel: bool, tokenizer: Tokenizer
) -> str:
    """Return the Lark grammar of any text in which each call that begins is one of ``functions``.

    Without ``parallel`` the text ends with its first call.

    Raises:
        RequestError: The schema of a strict function cannot be enforced.
    """
    layout = _LAYOUTS[parser](tokenizer)
    rules = _rules(functions, layout.key, enforce=False)
    free = layout.free if parallel else layout.free_once
    return "\n".join([*free, *rules])


@dataclass(frozen=True, slots=True)
class _Layout:
    """A format as Lark.

    Attributes:
        key: Of the arguments.
        call: One call, with its own marks.
        separator: Between two calls.
        calls: Puts the common marks around calls.
        free, free_once: The start rule of text with calls in it, or with one at its end.
    """

    key: str
    call: str
    separator: str
    calls: Callable[[str], str]
    free: tuple[str, ...]
    free_once: tuple[str, ...]


def _hermes(tokenizer: Tokenizer) -> _Layout:
    start, end = (_mark(tokenizer, f"<{name}>") for name in ("tool_call", "/tool_call"))
    call = f'{start} "\\n" function "\\n" {end}'
    trigger, rule = _trigger(tokenizer, "<tool_call>")
    rules = (f'tag: {trigger} "\\n" function "\\n" {end}', *rule)
    return _Layout(
        "arguments",
        call,
        '"\\n"',
        str,
        ("start: tag* REST", *rules),
        ("start: tag | REST", *rules),
    )


def _llama3_json(tokenizer: Tokenizer) -> _Layout:
    other = "OTHER: /([^ \\t\\r\\n{](.|\\n)*)?/"
    return _Layout(
        "parameters",
        "function",
        '"; "',
        str,
        ('start: function ("; " function)* | OTHER', other),
        ("start: function | OTHER", other),
    )


def _mistral(tokenizer: Tokenizer) -> _Layout:
    mark = _mark(tokenizer, "[TOOL_CALLS]")
    trigger, rule = _trigger(tokenizer, "[TOOL_CALLS]")
    return _Layout(
        "arguments",
        "function",
        '", "',
        lambda calls: f'{mark} "[" {calls} "]"',
        ("start: tag | REST", f'tag: {trigger} "[" function (", " function)* "]"', *rule),
        ("start: tag | REST", f'tag: {trigger} "[" function "]"', *rule),
    )


_LAYOUTS: dict[str, Callable[[Tokenizer], _Layout]] = {
    "hermes": _hermes,
    "llama3_json": _llama3_json,
    "mistral": _mistral,
}


def _special_id(tokenizer: Tokenizer, mark: str) -> int | None:
    """Return the id of a mark that no plain text can be; None when its characters are the mark."""
    token_id = tokenizer.token_to_id(mark)
    return token_id if token_id is not None and tokenizer.is_special(token_id) else None


def _mark(tokenizer: Tokenizer, mark: str) -> str:
    token_id = _special_id(tokenizer, mark)
    return json.dumps(mark) if token_id is None else f"<[{token_id}]>"


def _trigger(tokenizer: Tokenizer, mark: str) -> tuple[str, tuple[str, ...]]:
    """Return a rule's name for text up to and including a mark, with the rules it needs."""
    rest = "REST: /(.|\\n)*/"
    token_id = _special_id(tokenizer, mark)
    if token_id is not None:
        return f"REST <[{token_id}]>", (rest,)
    escaped = "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in mark)
    return "trigger", (rest, f"trigger[lazy]: /(.|\\n)*{escaped}/")


def _rules(functions: Sequence[Function], key: str, enforce: bool) -> list[str]:
    names = " | ".join(f"function_{i}" for i in range(len(functions)))
    rules = [f"function: {names}"]
    for i, function in enumerate(functions):
        head = f'{{"name": {json.dumps(function.name)}, "{key}": '
        schema = _enforceable(function, i, enforce)
        rules.append(f'function_{i}: {json.dumps(head)} arguments_{i} "}}"')
        rules.append(f"arguments_{i}: %json {json.dumps({**schema, 'x-guidance': ARGUMENT_STYLE})}")
    return rules


def _enforceable(function: Function, index: int, enforce: bool) -> dict[str, Any]:
    """Return the schema that the arguments follow."""
    if not (enforce or function.strict):
        return ANY_ARGUMENTS
    # Null, where a schema allows it as well as an object, would be no call.
    schema = {"additionalProperties": False, **function.parameters, "type": "object"}
    if not schema.get("properties") and "$ref" not in schema and len(schema) == 2:
        schema["properties"] = {}
    try:
        check_schema(schema)
    except RequestError as error:
        if not function.strict:
            return ANY_ARGUMENTS
        where = f"tools[{index}].function.parameters"
        rule = str(error).replace("[structured_outputs.json]", f"[{where}]")
        raise RequestError(rule, where) from error
    return schema

"""The arguments of one call as rules of Lark: as JSON, each in tags of its own, or as Python's."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from quire.text.grammars.grammar import COMPACT_JSON_STYLE
from quire.text.grammars.grammar_marks import mark, text_until
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tool_parsers.argument_types import property_types, referred

#: As Python's ``json.dumps`` writes, which is what the formats' models were trained on.
ARGUMENT_STYLE = {**COMPACT_JSON_STYLE, "item_separator": ", ", "key_separator": ": "}
#: What a schema of parameters may have besides them where each is a rule of its own.
_KNOWN = frozenset({
    "type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema",
    "title", "description", "x-guidance",
})  # fmt: skip
#: What may stand in the schema of a text that is written without quotes.
_TEXT_KNOWN = frozenset({
    "type", "enum", "minLength", "maxLength", "title", "description", "default", "examples",
})  # fmt: skip
#: The longest text whose length a grammar counts.
MAX_COUNTED = 1000
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = {"boolean": '("True" | "False")', "null": '"None"'}


class Arguments(Protocol):
    """A format's way to write arguments."""

    def rules(self, rule: str, schema: dict[str, Any]) -> list[str]:
        """Return the rules of ``rule``, which is all arguments of a call.

        Args:
            rule: The rule's name; the names of further rules begin with it.
            schema: The schema of the arguments, an object's, checked by
                ``quire.text.grammars.json_schema``.
        """
        ...

    def unenforceable(self, schema: dict[str, Any]) -> str:
        """Say what of a schema this form of writing cannot enforce; empty for nothing."""
        ...


class JsonArguments:
    """Arguments as one JSON object."""

    def rules(self, rule: str, schema: dict[str, Any]) -> list[str]:
        """Return one rule."""
        return [f"{rule}: {_json(schema)}"]

    def unenforceable(self, schema: dict[str, Any]) -> str:
        """Return nothing: what JSON cannot, the schema's check has refused."""
        return ""


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument between tags, texts without quotes.

    Attributes:
        tokenizer: The model's tokenizer.
        keys: Texts before and after an argument's name.
        end: Text after an argument's value.
        separator: Text after ``end``, between two arguments.
        any_key: Regular expression of a name that no schema tells.
    """

    tokenizer: Tokenizer
    keys: tuple[str, str]
    end: str
    separator: str
    any_key: str

    def rules(self, rule: str, schema: dict[str, Any]) -> list[str]:
        """Return a rule for each property, in their order."""
        if _unknown(schema):
            key = f"{rule}_key"
            before, after = map(self._marks, self.keys)
            free = self._text(f"{rule}_any", "(.|\\n)*")
            item = f"{before} {key.upper()} {after} {rule}_any {json.dumps(self.separator)}"
            return [f"{rule}: ({item})*", f"{key.upper()}: /{self.any_key}/", *free]
        made, items = [], []
        for number, (name, inner) in enumerate(schema["properties"].items()):
            if inner is False:
                continue
            one = f"{rule}_{number}"
            before, after = self._marks(self.keys[0]), self._marks(self.keys[1])
            head = f"{before} {json.dumps(name)} {after}"
            made.append(f"{one}: {head} {one}_value {json.dumps(self.separator)}")
            made += self._value(f"{one}_value", schema, name, inner)
            items.append(one if name in schema.get("required", ()) else f"{one}?")
        everything = " ".join(items) or '""'
        return [f"{rule}: {everything}", *made]

    def unenforceable(self, schema: dict[str, Any]) -> str:
        """Say what of a schema cannot be enforced where texts have no quotes."""
        if _unknown(schema):
            return _unknown(schema)
        for name, inner in schema["properties"].items():
            inner = _resolved(inner, schema)
            types = property_types(schema, name)
            if types and "string" not in types:
                continue
            known = _TEXT_KNOWN if types == {"string"} else _TEXT_KNOWN - {"enum"}
            more = set(inner) - known if isinstance(inner, dict) else set()
            counted = inner.get("maxLength", 0) if isinstance(inner, dict) else 0
            if more or counted > MAX_COUNTED:
                return f"{sorted(more)[0] if more else 'maxLength'} of {name}"
        return ""

    def _value(self, rule: str, schema: dict[str, Any], name: str, inner: Any) -> list[str]:
        types = property_types(schema, name)
        if types and "string" not in types:
            return [f"{rule}: {_json(_with_definitions(inner, schema))} {self._marks(self.end)}"]
        inner = _resolved(inner, schema)
        if types != {"string"} or not isinstance(inner, dict):
            return self._text(rule, "(.|\\n)*")
        if isinstance(inner.get("enum"), list) and inner["enum"]:
            texts = " | ".join(json.dumps(str(value)) for value in inner["enum"])
            return [f"{rule}: ({texts}) {self._marks(self.end)}"]
        low, high = inner.get("minLength", 0), inner.get("maxLength", MAX_COUNTED + 1)
        if low > MAX_COUNTED or high > MAX_COUNTED:
            repeat = f"{{{min(low, MAX_COUNTED)},}}" if low else "*"
        else:
            repeat = f"{{{low},{high}}}"
        return self._text(rule, f"(.|\\n){repeat}")

    def _text(self, rule: str, inner: str) -> list[str]:
        """Return the rules of a text and its end."""
        tag = self.end.removeprefix("\n")
        before = "" if tag == self.end else "\\n"
        return text_until(self.tokenizer, rule, tag, inner + before)

    def _marks(self, text: str) -> str:
        """Return text in which tags may be tokens of their own."""
        parts = [part for part in re.split(r"(</?[a-z_]+>)", text) if part]
        return " ".join(mark(self.tokenizer, part) for part in parts)


class PythonArguments:
    """Arguments as Python's keyword arguments; values in them as JSON, which Python nearly is."""

    def rules(self, rule: str, schema: dict[str, Any]) -> list[str]:
        """Return a rule for each property: those that must be given, then the others."""
        if _unknown(schema):
            key = f"{rule}_KEY".upper()
            return [
                f'{rule}: ({rule}_any (", " {rule}_any)*)?',
                f'{rule}_any: {key} "=" {_json({})}',
                f"{key}: /[A-Za-z_][A-Za-z0-9_]*/",
            ]
        made: list[str] = []
        required: list[str] = []
        optional: list[str] = []
        for number, (name, inner) in enumerate(schema["properties"].items()):
            if inner is False or not _IDENTIFIER.fullmatch(name):
                continue
            one = f"{rule}_{number}"
            types = property_types(schema, name)
            value = _PYTHON.get(next(iter(types)), "") if len(types) == 1 else ""
            value = value or _json(_with_definitions(inner, schema))
            made.append(f"{one}: {json.dumps(name + '=')} {value}")
            (required if name in schema.get("required", ()) else optional).append(one)
        if required:
            more = "".join(f' (", " {one})?' for one in optional)
            first = ' ", " '.join(required)
            return [f"{rule}: {first}{more}", *made]
        # From each optional one on: it and any of the later ones.
        starts = []
        for number, one in enumerate(optional):
            later = f"{rule}_after_{number}"
            following = " ".join(f'(", " {other})?' for other in optional[number + 1 :])
            made.append(f"{later}: {one} {following}")
            starts.append(later)
        return [f"{rule}: ({' | '.join(starts)})?" if starts else f'{rule}: ""', *made]

    def unenforceable(self, schema: dict[str, Any]) -> str:
        """Say what of a schema keyword arguments cannot have."""
        if _unknown(schema):
            return _unknown(schema)
        wrong = [name for name in schema["properties"] if not _IDENTIFIER.fullmatch(name)]
        return f"the name {wrong[0]!r}" if wrong else ""


def _unknown(schema: dict[str, Any]) -> str:
    """Return what keeps the properties from being rules of their own; empty for nothing."""
    if "properties" not in schema:
        return "an object without properties"
    if schema.get("additionalProperties", False) is not False:
        return "additionalProperties"
    return min(set(schema) - _KNOWN, default="")


def _resolved(schema: Any, root: dict[str, Any]) -> Any:
    """Follow references that are all there is to a schema."""
    for _ in range(len(root) + 16):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = referred(schema["$ref"], root)
    return schema


def _with_definitions(schema: Any, root: dict[str, Any]) -> Any:
    """Return a property's schema with what its references name, and how it is enforced."""
    if not isinstance(schema, dict):
        return schema
    return {
        **schema,
        **{key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root},
    }


def _json(schema: Any) -> str:
    if not isinstance(schema, dict):  # true or false
        schema = {} if schema else {"not": {}}
    style = {**ARGUMENT_STYLE, **schema.get("x-guidance", {})}
    return f"%json {json.dumps({**schema, 'x-guidance': style})}"

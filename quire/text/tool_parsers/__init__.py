"""Parsers of tool calls by format; one file each, one interface for all."""

from __future__ import annotations

from collections.abc import Iterable

from quire.text.tool_parsers.hermes import HermesParser
from quire.text.tool_parsers.llama3_json import Llama3JsonParser
from quire.text.tool_parsers.mistral import MistralParser
from quire.text.tool_parsers.parser import StateParser

PARSERS: dict[str, type[StateParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
}
#: Marks of formats that look like another one and are not.
_OTHERS = ("<function=", "<arg_key>", "<invoke", "<parameter=")


def detect_parser(templates: Iterable[str]) -> str | None:
    """Return the name of the format that a model's templates write; None when that is not sure."""
    found = set()
    for source in templates:
        if any(mark in source for mark in _OTHERS):
            return None
        if "<tool_call>" in source:
            found.add("hermes")
        if "[TOOL_CALLS]" in source:
            found.add("mistral")
        if '"parameters"' in source and ("<|python_tag|>" in source or "<|eom_id|>" in source):
            found.add("llama3_json")
    return found.pop() if len(found) == 1 else None

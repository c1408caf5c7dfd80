"""Parsers of tool calls by format; one file each, one interface for all."""

from __future__ import annotations

from collections.abc import Iterable

from quire.text.tool_parsers.deepseek import DeepseekV3Parser, DeepseekV31Parser
from quire.text.tool_parsers.granite import GraniteParser
from quire.text.tool_parsers.harmony import HarmonyParser
from quire.text.tool_parsers.hermes import HermesParser
from quire.text.tool_parsers.llama3_json import Llama3JsonParser
from quire.text.tool_parsers.mistral import MistralParser
from quire.text.tool_parsers.parser import StateParser
from quire.text.tool_parsers.pythonic import PythonicParser
from quire.text.tool_parsers.tagged import Glm45Parser, Qwen3CoderParser

#: By vLLM's names.
PARSERS: dict[str, type[StateParser] | type[HarmonyParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "pythonic": PythonicParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
    "deepseek_v3": DeepseekV3Parser,
    "deepseek_v31": DeepseekV31Parser,
    "glm45": Glm45Parser,
    "granite": GraniteParser,
    "openai": HarmonyParser,
}
#: Other names of the same formats.
ALIASES = {
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_xml": "qwen3_coder",
    "glm47": "glm45",
    "granite4": "hermes",
}
#: Marks of formats that look like another one and are not.
_OTHERS = ("<invoke", "<tool_sep>", "<minimax:tool_call>", "<|tool_call_begin|>")


def detect_parser(templates: Iterable[str]) -> str | None:
    """Return the name of the format that a model's templates write; None when that is not sure."""
    found = set()
    for source in templates:
        halves = [mark for mark in ("<function=", "<parameter=") if mark in source]
        if len(halves) == 1 or any(mark in source for mark in _OTHERS):
            return None
        found |= _formats(source)
    return found.pop() if len(found) == 1 else None


def _formats(source: str) -> set[str]:
    """Return the formats whose marks one template has."""
    found = set()
    if "<arg_key>" in source:
        found.add("glm45")
    elif "<function=" in source and "<parameter=" in source:
        found.add("qwen3_coder")
    elif "<|tool_call|>" in source:
        found.add("granite")
    elif "<tool_call>" in source:
        found.add("hermes")
    if "<｜tool▁sep｜>" in source:
        found.add("deepseek_v3" if "```json" in source else "deepseek_v31")
    if "<|channel|>" in source and "functions" in source:
        found.add("openai")
    if "[TOOL_CALLS]" in source:
        found.add("mistral")
    if '"parameters"' in source and ("<|python_tag|>" in source or "<|eom_id|>" in source):
        found.add("llama3_json")
    elif "[func_name1(" in source:
        found.add("pythonic")
    return found

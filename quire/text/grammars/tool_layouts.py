"""Texts around calls in each format, as Lark; how arguments look is in another file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from quire.text.grammars.grammar_marks import mark, text_until
from quire.text.grammars.harmony_grammar import analysis_rule, call_header, other_message_rules
from quire.text.grammars.tool_argument_rules import (
    Arguments,
    JsonArguments,
    PythonArguments,
    TaggedArguments,
)
from quire.text.reasoning_parsers.harmony import CALL as HARMONY_CALL
from quire.text.reasoning_parsers.harmony import START as HARMONY_START
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tool_parsers import deepseek, granite, tagged

REST = "REST: /(.|\\n)*/"


@dataclass(frozen=True, slots=True)
class ToolCallLayout:
    """A format as Lark.

    Attributes:
        head: A function that returns the text between a call's mark and its arguments, given a
            name.
        tail: Text after the arguments, inside the marks.
        call: One call, with its own marks, around the rule ``function``.
        separator: Text between two calls.
        calls: A function that puts the common marks around calls.
        free, free_once: ``start`` and other rules of text with calls in it, or with one at its end.
        arguments: The format's way to write arguments.
        rules: Further rules that ``call`` and ``calls`` need.
    """

    head: Callable[[str], str]
    tail: str
    call: str
    separator: str
    calls: Callable[[str], str]
    free: Sequence[str]
    free_once: Sequence[str]
    arguments: Arguments = field(default_factory=JsonArguments)
    rules: Sequence[str] = ()


def _object(key: str) -> Callable[[str], str]:
    """Return the head of a call that is one JSON object, with the arguments under ``key``."""
    return lambda name: json.dumps(f'{{"name": {json.dumps(name)}, "{key}": ')


def _in_tags(tokenizer: Tokenizer, head: Callable[[str], str], tail: str, arguments: Arguments,
             inner: str) -> ToolCallLayout:  # fmt: skip
    """Return a layout of ``<tool_call>`` and what is ``inner`` to it, as often as wanted."""
    end = mark(tokenizer, tagged.END)
    tag = f"tag: trigger {inner} {end}"
    rules = (tag, *text_until(tokenizer, "trigger", tagged.START), REST)
    call = f"{mark(tokenizer, tagged.START)} {inner} {end}"
    free, once = ("start: tag* REST", *rules), ("start: tag | REST", *rules)
    return ToolCallLayout(head, tail, call, '"\\n"', str, free, once, arguments)


def _hermes(tokenizer: Tokenizer) -> ToolCallLayout:
    inner = '"\\n" function "\\n"'
    return _in_tags(tokenizer, _object("arguments"), '"}"', JsonArguments(), inner)


def _qwen3_coder(tokenizer: Tokenizer) -> ToolCallLayout:
    arguments = TaggedArguments(
        tokenizer, ("<parameter=", ">\n"), "\n</parameter>", "\n", r"[^<>\n]+"
    )
    return _in_tags(
        tokenizer,
        lambda name: json.dumps(f"<function={name}>\n"),
        '"</function>"',
        arguments,
        '"\\n" function "\\n"',
    )


def _glm45(tokenizer: Tokenizer) -> ToolCallLayout:
    keys = ("<arg_key>", "</arg_key>\n<arg_value>")
    arguments = TaggedArguments(tokenizer, keys, "</arg_value>", "\n", "[^<]+")
    return _in_tags(tokenizer, lambda name: json.dumps(f"{name}\n"), '""', arguments, "function")


def _llama3_json(tokenizer: Tokenizer) -> ToolCallLayout:
    other = "OTHER: /([^ \\t\\r\\n{](.|\\n)*)?/"
    return ToolCallLayout(
        _object("parameters"),
        '"}"',
        "function",
        '"; "',
        str,
        ('start: function ("; " function)* | OTHER', other),
        ("start: function | OTHER", other),
    )


def _pythonic(tokenizer: Tokenizer) -> ToolCallLayout:
    other = "OTHER: /([^ \\t\\r\\n\\[](.|\\n)*)?/"
    return ToolCallLayout(
        lambda name: json.dumps(f"{name}("),
        '")"',
        "function",
        '", "',
        lambda calls: f'"[" {calls} "]"',
        ('start: "[" function (", " function)* "]" | OTHER', other),
        ('start: "[" function "]" | OTHER', other),
        PythonArguments(),
    )


def _listed(tokenizer: Tokenizer, start: str) -> ToolCallLayout:
    """Return a layout of a JSON list of calls after a mark."""
    rules = (*text_until(tokenizer, "trigger", start), REST)
    return ToolCallLayout(
        _object("arguments"),
        '"}"',
        "function",
        '", "',
        lambda calls: f'{mark(tokenizer, start)} "[" {calls} "]"',
        ("start: tag | REST", 'tag: trigger "[" function (", " function)* "]"', *rules),
        ("start: tag | REST", 'tag: trigger "[" function "]"', *rules),
    )


def _granite(tokenizer: Tokenizer) -> ToolCallLayout:
    knows = tokenizer.token_to_id(granite.TOKEN) is not None
    return _listed(tokenizer, granite.TOKEN if knows else granite.TEXT)


def _deepseek(fence: str, tokenizer: Tokenizer) -> ToolCallLayout:
    begin, end, call, call_end, separator = (
        mark(tokenizer, one)
        for one in (deepseek.CALLS, deepseek.CALLS_END, deepseek.CALL, deepseek.CALL_END,
                    deepseek.SEPARATOR)
    )  # fmt: skip
    kind = f'"function" {separator} ' if fence else ""
    after_name = json.dumps(f"\n{fence}json\n") if fence else separator
    between = '"\\n"' if fence else '""'
    one = f"{call} function {call_end}"
    rules = (*text_until(tokenizer, "trigger", deepseek.CALLS), REST)
    return ToolCallLayout(
        lambda name: f"{kind}{json.dumps(name)} {after_name}",
        json.dumps(f"\n{fence}") if fence else '""',
        one,
        between,
        lambda calls: f"{begin} {calls} {end}",
        ("start: tag | REST", f"tag: trigger {one} ({between} {one})* {end}", *rules),
        ("start: tag | REST", f"tag: trigger {one} {end}", *rules),
    )


def _openai(tokenizer: Tokenizer) -> ToolCallLayout:
    more = f'{mark(tokenizer, HARMONY_CALL)} {mark(tokenizer, HARMONY_START)} "assistant"'
    others = other_message_rules(tokenizer)
    return ToolCallLayout(
        partial(call_header, tokenizer),
        '""',
        "function",
        more,
        lambda calls: f"analysis* {calls}",
        (f"start: other* (last_other | function ({more} function)*)", *others),
        ("start: other* (last_other | function)", *others),
        rules=analysis_rule(tokenizer),
    )


LAYOUTS: dict[str, Callable[[Tokenizer], ToolCallLayout]] = {
    "hermes": _hermes,
    "llama3_json": _llama3_json,
    "pythonic": _pythonic,
    "mistral": lambda tokenizer: _listed(tokenizer, "[TOOL_CALLS]"),
    "qwen3_coder": _qwen3_coder,
    "deepseek_v3": partial(_deepseek, deepseek.FENCE),
    "deepseek_v31": partial(_deepseek, ""),
    "glm45": _glm45,
    "granite": _granite,
    "openai": _openai,
}

"""Calls as the models of each format write them, and how a parser reads them."""

from __future__ import annotations

import json

from quire.text.tool_parsers import PARSERS
from quire.text.tool_parsers.interface import Parsed

#: Formats whose arguments have no quotes, so that a schema tells text from numbers.
TAGGED = ("qwen3_coder", "glm45")
#: Formats whose arguments have names that are identifiers.
NAMED = (*TAGGED, "pythonic")
TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip


def read(name, pieces, schemas=None):
    """Return content, calls as (name, arguments) and errors of a text in pieces."""
    parser, found = PARSERS[name](schemas), Parsed()
    for piece in pieces:
        found.join(parser.add(piece))
    found.join(parser.flush())
    calls = []
    for delta in found.calls:
        if delta.name is not None:
            assert delta.index == len(calls), "a name comes once, first, and in order"
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    return found.content, [tuple(call) for call in calls], parser.errors


def every_cut(name, text, schemas=None):
    """Read a text cut at every place, and into characters; all agree."""
    whole = read(name, [text], schemas)
    assert read(name, list(text), schemas) == whole
    for cut in range(1, len(text)):
        assert read(name, [text[:cut], text[cut:]], schemas) == whole, (text, cut)
    return whole


def schemas_of(calls):
    """Return schemas that fit calls of functions with different names."""
    return {
        name: {"properties": {key: {"type": TYPES[type(value)]} for key, value in made.items()}}
        for name, made in calls
    }


def written(name, calls, ascii_only=False, indent=None):
    """Write calls as a model of the format does."""

    def dump(value):
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    def plain(value):
        return value if isinstance(value, str) else dump(value)

    key = "parameters" if name == "llama3_json" else "arguments"
    objects = [dump({"name": n, key: a}) for n, a in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
    if name == "llama3_json":
        return "; ".join(objects)
    if name in ("mistral", "granite"):
        mark = "[TOOL_CALLS]" if name == "mistral" else "<tool_call>"
        return f"{mark}[{', '.join(objects)}]"
    if name == "pythonic":
        made = [f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls]
        return f"[{', '.join(made)}]"
    if name == "qwen3_coder":
        made = [
            f"<function={n}>\n"
            + "".join(f"<parameter={k}>\n{plain(v)}\n</parameter>\n" for k, v in a.items())
            + "</function>"
            for n, a in calls
        ]
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in made)
    if name == "glm45":
        made = [
            f"{n}\n"
            + "".join(
                f"<arg_key>{k}</arg_key>\n<arg_value>{plain(v)}</arg_value>\n" for k, v in a.items()
            )
            for n, a in calls
        ]
        return "\n".join(f"<tool_call>{text}</tool_call>" for text in made)
    if name == "openai":
        made = [
            f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dump(a)}"
            for n, a in calls
        ]
        return "<|call|><|start|>assistant".join(made)
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    if name == "deepseek_v3":
        made = [f"function<｜tool▁sep｜>{n}\n```json\n{dump(a)}\n```" for n, a in calls]
    else:
        made = [f"{n}<｜tool▁sep｜>{dump(a)}" for n, a in calls]
    between = "\n" if name == "deepseek_v3" else ""
    all_of_them = between.join(f"{begin}{text}{end}" for text in made)
    return f"<｜tool▁calls▁begin｜>{all_of_them}<｜tool▁calls▁end｜>"


def said(name, text):
    """Write an answer that calls nothing."""
    return f"<|channel|>final<|message|>{text}" if name == "openai" else text

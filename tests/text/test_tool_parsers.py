"""Tool calls are read the same however the text is cut, and never invented, lost or broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.text.tool_parsers import PARSERS, detect_parser
from quire.text.tool_parsers.interface import Parsed
from quire.text.tool_parsers.json_scanner import JsonScanner

#: What models write, and what they write wrong.
FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<tool", "\n", " ", "{", "}", "[", "]", ":", ", ", ";", "\\",
    '"',
    '"name"', '"f"', '"arguments"', '"parameters"', '{"a": 1}', '{"b": "x\\u00e9\\ud83d"}', "é😀",
    '"s": "</tool_call>[TOOL_CALLS]"', "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "abc", "1.5e3", "nul",
    "<|python_tag|>", '{"name": "g", "arguments": {"q": [1, {"z": null}]}}', '{"name": "h"}',
    '"{}"',
    '"{\\"k\\": 1}"', '{"name": "f", "parameters": {"a": ',
    '<tool_call>\n{"name": "f", "arguments": ',
    '[TOOL_CALLS][{"name": "f", "arguments": ', "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]g{",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(
        st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True),
        st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


def read(name, pieces):
    """Return content, calls as (name, arguments) and errors of a text in pieces."""
    parser, found = PARSERS[name](), Parsed()
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


def every_cut(name, text):
    """Read a text cut at every place, and into characters; all agree."""
    whole = read(name, [text])
    assert read(name, list(text)) == whole
    for cut in range(1, len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole, (text, cut)
    return whole


def written(name, calls, ascii_only, indent):
    """Write calls as a model of the format does."""
    key = "parameters" if name == "llama3_json" else "arguments"
    objects = [
        json.dumps({"name": n, key: a}, ensure_ascii=ascii_only, indent=indent) for n, a in calls
    ]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
    return "; ".join(objects) if name == "llama3_json" else f"[TOOL_CALLS][{', '.join(objects)}]"


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=25, deadline=None)
@given(calls=CALLS, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_was_written_is_read(name, calls, ascii_only, indent):
    text = written(name, calls, ascii_only, indent)
    content, found, errors = every_cut(name, text)
    assert (content, errors) == ("", [])
    assert [(n, json.loads(arguments)) for n, arguments in found] == calls


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=120, deadline=None)
@given(text=TEXTS)
@example(text="[TOOL_CALLS]f[ARGS]{}")
@example(text='[TOOL_CALLS][{"name": "f", "arguments": {}}][TOOL_CALLS]g{')
@example(text='<tool_call>{"arguments": {"a": 1}, "name": "late"}</tool_call>')
def test_however_the_text_is_cut(name, text):
    content, calls, errors = every_cut(name, text)
    wrong = {index for index, _ in errors}
    for index, (called, arguments) in enumerate(calls):
        assert called
        if index not in wrong:
            assert isinstance(json.loads(arguments), dict)
    if not calls:
        assert content == text, "what is not a call is content, unchanged"


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        (
            "hermes",
            'I look.\n\n<tool_call>{"name": "f", "arguments": {"s": "</tool_call>"}}</tool_call>\n',
            "I look.",
            [("f", '{"s": "</tool_call>"}')],
        ),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [("f", "{}")]),
        # A brace too few: the arguments are whole.
        ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>x', "x", [("f", "{}")]),
        ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
        ("hermes", "a < b, <tool_call or not ", "a < b, <tool_call or not ", []),
        ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
        ("llama3_json", 'Say {"name": "f", "parameters": {}}', None, []),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")]),
        ("mistral", 'Hi[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}', "Hi", [("f", '{"a": 1}')]),
        ("mistral", "[TOOL_CALLS]f{}[TOOL_CALLS]g{}", "", [("f", "{}"), ("g", "{}")]),
        ("mistral", "[TOOL_CALLS] what?", "[TOOL_CALLS] what?", []),
    ],
)
def test_cases(name, text, content, calls):
    found = every_cut(name, text)
    assert found == (text if content is None else content, calls, [])


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>', '{"a": x}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', '{"a": 1'),
        ("llama3_json", '{"name": "f", "parameters": {"a": 01}}', '{"a": 01}}'),
        ("mistral", "[TOOL_CALLS]f[ARGS]{'a': 1}", "{'a': 1}"),
    ],
)
def test_broken_arguments_are_passed_on_and_named(name, text, arguments):
    content, calls, errors = every_cut(name, text)
    assert (content, calls) == ("", [("f", arguments)])
    assert [index for index, _ in errors] == [0]


@settings(max_examples=150, deadline=None)
@given(text=TEXTS | JSON.map(json.dumps))
def test_the_scanner_agrees_with_python(text):
    scanner = JsonScanner()
    end = scanner.feed(text + "\n")
    if scanner.done:
        json.loads(text[:end])
    else:
        assert scanner.error or not text.strip() or not _valid(text)


def _valid(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{% if tools %}<tools>{% endif %}<tool_call>", "hermes"),
        ("<tool_call><function=f><parameter=a>", None),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ('{"name": x, "parameters": y}<|python_tag|>', "llama3_json"),
        ("<tool_call>[TOOL_CALLS]", None),
        ("{{ messages }}", None),
    ],
)
def test_detection_is_careful(source, name):
    assert detect_parser([source]) == name

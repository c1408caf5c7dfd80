"""Tool calls are read the same however the text is cut, and never invented, lost or broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.grammars.tool_layouts import LAYOUTS
from quire.text.json_scanner import JsonScanner
from quire.text.tool_parsers import ALIASES, PARSERS, detect_parser
from quire.text.tool_parsers.python_literal import read_literal
from tests.sizes import sized
from tests.text.tool_calls import NAMED, every_cut, read, schemas_of, written

#: What models write, and what they write wrong.
FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<tool", "\n", " ", "{", "}", "[", "]", ":", ", ", ";", "\\",
    '"', '"name"', '"f"', '"arguments"', '"parameters"', '{"a": 1}', "é😀", "abc", "1.5e3", "nul",
    '{"b": "x\\u00e9\\ud83d"}', '{"name": "g", "arguments": {"q": [1, {"z": null}]}}',
    '{"name": "h"}',
)  # fmt: skip
JSON_FRAGMENTS = (
    '"s": "</tool_call>[TOOL_CALLS]"', '"{}"', '"{\\"k\\": 1}"',
    '{"name": "f", "parameters": {"a": ', '<tool_call>\n{"name": "f", "arguments": ',
)  # fmt: skip
OWN = {
    "hermes": JSON_FRAGMENTS,
    "llama3_json": (*JSON_FRAGMENTS, "<|python_tag|>"),
    "mistral": (*JSON_FRAGMENTS, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CALLS]g{",
                '[TOOL_CALLS][{"name": "f", "arguments": ', "[TOOL_CALLS]f[ARGS]"),
    "granite": (*JSON_FRAGMENTS, "<|tool_call|>", '<tool_call>[{"name": "f", "arguments": '),
    "pythonic": ("<|python_start|>", "<|python_end|>", "[f(", "g()", "a=", "b = ", ")", "'x'",
                 "True", "{'k': (1, 2,)}", "[f(a=1", "'", "\\'", "None", "-1_0", "[f(a=1)]"),
    "qwen3_coder": ("<tool_call>\n<function=f>\n", "<function=", ">", "<parameter=a>",
                    "<parameter=n>\n", "</parameter>", "\n</parameter>\n", "</function>", "1"),
    "glm45": ("<tool_call>f\n", "<arg_key>", "a</arg_key>", "n</arg_key>\n<arg_value>",
              "<arg_value>", "</arg_value>", "<tool_call>f<arg_key>n</arg_key><arg_value>", "1"),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>",
                    "f\n```json\n", "```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "f<｜tool▁sep｜>",
                     "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
                     "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
    "openai": ("<|channel|>", "<|message|>", "<|start|>assistant", "<|end|>", "<|call|>",
               "commentary", "analysis", " to=functions.f", " <|constrain|>json",
               "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "final",
               "<|channel|>analysis<|message|>", "to=", "<|return|>"),
}  # fmt: skip
SCHEMAS = {"f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)


def calls_of(name):
    """Return a strategy of calls, each of another function, as the format can write them."""
    keys = NAMES if name in NAMED else st.text(max_size=5)
    call = st.tuples(NAMES, st.dictionaries(keys, JSON, max_size=3))
    return st.lists(call, min_size=1, max_size=3, unique_by=lambda made: made[0])


def texts_of(name):
    """Return a strategy of what models write, and what they write wrong."""
    own = st.sampled_from(OWN[name])
    return st.lists(own | own | st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=sized(6, 25), deadline=None)
@given(data=st.data(), ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_was_written_is_read(name, data, ascii_only, indent):
    calls = data.draw(calls_of(name))
    text = written(name, calls, ascii_only, indent)
    content, found, errors = every_cut(name, text, schemas_of(calls))
    assert (content, errors) == ("", [])
    assert [(n, json.loads(arguments)) for n, arguments in found] == calls


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=sized(25, 120), deadline=None)
@given(data=st.data())
def test_however_the_text_is_cut(name, data):
    check_any_cut(name, data.draw(texts_of(name)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}][TOOL_CALLS]g{'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "late"}</tool_call>'),
        # Longer than a call's beginning may be.
        ("mistral", "[TOOL_CALLS]" + "f" * 300 + "{}"),
        ("qwen3_coder", f"<tool_call><function={'f' * 300}>"),
        ("qwen3_coder", f"<tool_call><function=f><parameter={'a' * 300}>1</parameter></function>"),
        ("glm45", f"<tool_call>{'f' * 300}</tool_call>"),
        (
            "glm45",
            f"<tool_call>f<arg_key>{'a' * 300}</arg_key><arg_value>1</arg_value></tool_call>",
        ),
        ("deepseek_v31", f"<｜tool▁call▁begin｜>{'f' * 300}<｜tool▁sep｜>{{}}"),
        ("pythonic", f"[{'f' * 300}({'a' * 300}=1)]"),
        ("openai", f"<|channel|>{'x' * 600}<|message|>Hi"),
        ("openai", "  <|start|><|start|> what?"),
    ],
)
def test_edges_however_they_are_cut(name, text):
    check_any_cut(name, text)


def check_any_cut(name, text):
    content, calls, errors = every_cut(name, text, SCHEMAS)
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
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {}}]', "", [("f", "{}")]),
        ("granite", 'Hm.<tool_call> [{"name": "f", "arguments": {}}]', "Hm.", [("f", "{}")]),
        ("granite", '[{"name": "f", "arguments": {}}]', "", [("f", "{}")]),
        ("granite", '[{"name": "Ann"}]', None, []),
        (
            "pythonic",
            "[f(a='x', b=[1, None], c={'k': True}), g()]",
            "",
            [("f", '{"a": "x", "b": [1, null], "c": {"k": true}}'), ("g", "{}")],
        ),
        (
            "pythonic",
            r"""[f(a='\d+\n', b="it's", c=-1.5e3, d=(1,))]""",
            "",
            [("f", '{"a": "\\\\d+\\n", "b": "it\'s", "c": -1500.0, "d": [1]}')],
        ),
        ("pythonic", "<|python_start|>[f(a=true,)]<|python_end|>", "", [("f", '{"a": true}')]),
        ("pythonic", "[see f(x)] and [f(x)]", None, []),
        ("pythonic", "[f(a=1), what]", ", what]", [("f", '{"a": 1}')]),
        ("pythonic", "So: [f(a=1)]", None, []),
        (
            "qwen3_coder",
            "I look.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n\n2\n</parameter>\n"
            "<parameter=n>\n7\n</parameter>\n<parameter=x>\n{'k': 1}\n</parameter>\n</function>\n"
            "</tool_call>",
            "I look.",
            [("f", '{"a": "1\\n\\n2", "n": 7, "x": {"k": 1}}')],
        ),
        ("qwen3_coder", "<tool_call><function=f></function></tool_call>x", "x", [("f", "{}")]),
        ("qwen3_coder", "<tool_call>\n<func", None, []),
        (
            "glm45",
            "<tool_call>f<arg_key>a</arg_key><arg_value>7</arg_value><arg_key>n</arg_key>"
            "<arg_value>seven</arg_value></tool_call>",
            "",
            [("f", '{"a": "7", "n": "seven"}')],
        ),
        ("glm45", "<tool_call>now</tool_call>", "", [("now", "{}")]),
        ("glm45", "<tool_call>is not one</tool_call>", None, []),
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```",
            "",
            [("f", "{}")],
        ),
        (
            "deepseek_v31",
            "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Hm.",
            [("f", "{}")],
        ),
        # Without the fence, and with a mark cut by the answer's end.
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}<｜tool▁call▁end｜>",
            "",
            [("f", "{}")],
        ),
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}<｜tool▁call▁en",
            "",
            [("f", "{}")],
        ),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁e",
            "",
            [("f", "{}")],
        ),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>none", None, []),
        (
            "openai",
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            "",
            [("f", "{}")],
        ),
        ("openai", "<|channel|>analysis to=functions.f code<|message|><|call|>", "", [("f", "{}")]),
        ("openai", "<|channel|>commentary to=python<|message|>1<|call|>", None, []),
    ],  # fmt: skip
)
def test_cases(name, text, content, calls):
    found = every_cut(name, text, SCHEMAS)
    assert found == (text if content is None else content, calls, [])


@pytest.mark.parametrize(
    ("name", "text", "num_calls"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": null}\n</tool_call>', 1),
        ("hermes", '<tool_call>{"arguments": "", "name": "f"}</tool_call>', 1),
        ("hermes", '<tool_call>{"name": "f"}\n{"name": "f", "arguments": {}}\n</tool_call>', 2),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": null}]', 1),
        ("llama3_json", '{"name": "f", "parameters": null}', 1),
        ("llama3_json", '{"name": "f", "parameters": {}}\n{"name": "f", "parameters": {}}', 2),
        ("pythonic", "<|python_start|>[f()]<|python_e", 1),
        ("pythonic", "<|python_start|>[f(), f()]\n<", 2),
    ],
)
def test_calls_without_arguments_or_separators_were_shown_as_text(name, text, num_calls):
    """Arguments that are null, calls one after the other, and a cut end mark were content."""
    content, calls, errors = every_cut(name, text, SCHEMAS)
    assert (content, calls, errors) == ("", [("f", "{}")] * num_calls, [])


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>', '{"a": x}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', '{"a": 1'),
        ("llama3_json", '{"name": "f", "parameters": {"a": 01}}', '{"a": 01}}'),
        ("mistral", "[TOOL_CALLS]f[ARGS]{'a': 1}", "{'a': 1}"),
        ("pythonic", "[f(a=1, b=open)]", '{"a": 1open)]'),
        ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>1", '{"n": '),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{a}<｜tool▁call▁end｜>", "{a}"),
        ("openai", " to=functions.f<|message|>print(1)<|call|>", "print(1)"),
        ("openai", '<|channel|>commentary to=functions.f<|message|>{"a": 1} x', '{"a": 1} x'),
    ],
)
def test_broken_arguments_are_passed_on_and_named(name, text, arguments):
    content, calls, errors = every_cut(name, text, SCHEMAS)
    assert (content, calls) == ("", [("f", arguments)])
    assert [index for index, _ in errors] == [0]


@pytest.mark.parametrize(
    ("name", "text", "content", "arguments"),
    [
        # Qwen3-Coder leaves its first mark out at times.
        ("qwen3_coder", "<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", "",
         '{"a": "x"}'),
        ("qwen3_coder", "Hm.\n<function=f></function>\n</tool_call>", "Hm.", "{}"),
        ("qwen3_coder", "write <function=f> and </function>", None, None),
        ("qwen3_coder", "<tool_call><function=f>a=1</function></tool_call>", None, None),
        # A closing tag in a value is text, and a missing one no reason to lose the value.
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\nx</parameter>y\n</parameter>\n"
         "<parameter=n>\n3\n</parameter></function></tool_call>", "",
         '{"a": "x</parameter>y", "n": 3}'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a></function></tool_call>.</parameter>"
         "</function></tool_call>", "", '{"a": "</function></tool_call>."}'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\nx\n</function>\n</tool_call>\n", "",
         '{"a": "x"}'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\nx\n</parameter>\n</tool_call>", "",
         '{"a": "x"}'),
        ("qwen3_coder", "<function=f><parameter=a>\nx\n</parameter>\n", "", '{"a": "x"}'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\nx\n<parameter=n>\n3\n</parameter>\n"
         "</function></tool_call>", "", '{"a": "x", "n": 3}'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>\nx <parameter=n>\n<parameter=z>\n"
         "</parameter></function></tool_call>", "", '{"a": "x <parameter=n>\\n<parameter=z>"}'),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value></arg_value></b></arg_value>"
         "</tool_call>", "", '{"a": "</arg_value></b>"}'),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>", "", '{"a": "x"}'),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>x<arg_key>n</arg_key><arg_value>3"
         "</arg_value></tool_call>", "", '{"a": "x", "n": 3}'),
        ("openai", '<|channel|>commentary to=functions.f<|message|>{"a": "<|call|>"}<|call|>', "",
         '{"a": "<|call|>"}'),
    ],
)  # fmt: skip
def test_marks_that_are_missing_or_stand_in_a_value(name, text, content, arguments):
    """Calls were shown as text, or had arguments that were no JSON."""
    calls = [] if arguments is None else [("f", arguments)]
    found = every_cut(name, text, SCHEMAS)
    assert found == (text if content is None else content, calls, [])


def test_an_argument_without_a_tag_leaves_the_others_json():
    """What stood in its place was passed on as arguments."""
    text = f"<tool_call><function=f><parameter={'a' * 300}>1</parameter></function></tool_call>"
    content, calls, errors = every_cut("qwen3_coder", text, SCHEMAS)
    assert content and calls == [("f", "{}")] and [index for index, _ in errors] == [0]


@settings(max_examples=150, deadline=None)
@given(text=texts_of("mistral") | JSON.map(json.dumps))
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
        ("<tool_call><function=f><parameter=a>", "qwen3_coder"),
        ("<tool_call><function=f>", None),
        ("<tool_call><arg_key><arg_value>", "glm45"),
        ("<|tool_call|>", "granite"),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜>```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜>", "deepseek_v31"),
        ("<|start|>assistant to=functions.<|channel|>commentary json<|message|>", "openai"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("<invoke name=", None),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ('{"name": x, "parameters": y}<|python_tag|>', "llama3_json"),
        ("<tool_call>[TOOL_CALLS]", None),
        ("{{ messages }}", None),
    ],
)
def test_detection_is_careful(source, name):
    assert detect_parser([source]) == name


def test_every_parser_has_a_layout():
    """A parser without one was a KeyError, an HTTP 500, at the first call that was forced."""
    assert set(PARSERS) == set(LAYOUTS)


def test_aliases_are_of_known_formats():
    assert set(ALIASES.values()) <= set(PARSERS) and not set(ALIASES) & set(PARSERS)


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_literals_are_read_as_python_reads_them(value):
    assert read_literal(repr(value)) == value


@pytest.mark.parametrize(
    "text", ["", "f()", "[1 2]", "{1: 2}", "[,]", "1" * 2000, "1e999", "'a\nb'", "[" * 300, "'"]
)
def test_what_is_no_literal(text):
    with pytest.raises(ValueError):
        read_literal(text)


#: What a model that was told to break a parser writes between the marks.
SHARDS = [
    *("{", "}", '"', "[", "]", ":", ",", "(", ")", "\\", "'", " ", "\n", "<", "</", "```json"),
    *('"name"', '"arguments"', '"f"', "f", "f(", "a=", '"\\ud800"', "\\u", "\x00", "1e999"),
    *("[" * 300, "{" * 300, " " * 300, "x" * 300, "<function=f>", "<parameter=a>", "1" * 20),
    *('{"name": "f", "arguments": ', '{"arguments": {"a": 1}', "<|channel|>commentary", "[f(a=1"),
    *("to=functions.f", "```"),
]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=sized(25, 400), deadline=None)
@given(data=st.data())
def test_hostile_text_is_read_alike_however_it_is_cut(name, data):
    shards = st.sampled_from([*PARSERS[name].marks, *PARSERS[name].marks, *SHARDS])
    text = "".join(data.draw(st.lists(shards, max_size=12)))
    content, calls, errors = whole = read(name, [text], SCHEMAS)
    assert read(name, list(text), SCHEMAS) == whole
    wrong = {index for index, _ in errors}
    for index, (called, arguments) in enumerate(calls):
        assert called.encode() and arguments.encode() is not None
        assert index in wrong or isinstance(json.loads(arguments), dict)
    assert content.encode() is not None


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": ' + "1" * 5000 + ', "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>',
    ],
    ids=["number", "half", "half inside"],
)
def test_a_name_that_no_answer_can_hold_is_content(text):
    """Python reads no number so long and writes no half of a character: the request was a 500."""
    for pieces in ([text], list(text)):
        assert read("hermes", pieces, SCHEMAS)[:2] == (text, [])


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}'),
        ("hermes", "content"),
        ("llama3_json", ""),
        ("pythonic", "[f("),
        ("mistral", "[TOOL_CALLS]"),
        ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>"),
        ("qwen3_coder", "<tool_call><function=f>"),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>"),
    ],
)
def test_space_without_end_is_looked_at_once(name, head):
    """All of it was searched anew with each piece: 40,000 characters took 0.6 s, 160,000 ten."""
    parser = PARSERS[name](SCHEMAS)
    parser.add(head)
    for _ in range(100):
        parser.add("  ")
        assert len(parser.buffer) + len(parser.pending) <= len(head) + 2

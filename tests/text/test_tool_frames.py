"""What models write around calls, against their templates: lists, fences, quotes, other objects."""

from __future__ import annotations

import pytest

from tests.text.tool_calls import every_cut

SCHEMAS = {"f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}
CALL = '{"name": "f", "arguments": {"a": "x"}}'
INNER = '{"name": "f", "arguments": {"a": "x"}'
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n[{CALL},\n{CALL}]\n</tool_call>", "", 2),
        ("hermes", f"<tool_call>[{CALL}, or]</tool_call>.", ", or].", 1),
        ("hermes", f"<tool_call>[{CALL},", "", 1),
        ("hermes", f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>\n", "", 1),
        ("hermes", f"<tool_call>```[{CALL}]```", "", 1),
        ("hermes", "<tool_call>```sh\nls```</tool_call>", None, 0),
        ("hermes", f"<tool_call>{CALL} or so</tool_call>.", " or so.", 1),
        # The shape of OpenAI's API, whole, with arguments as text, and with a brace too few.
        ("hermes", f'<tool_call>{{"type": "function", "function": {CALL}}}</tool_call>', "", 1),
        ("hermes", f'<tool_call>{{"function": {INNER}}}, "id": "1"}}</tool_call>', "", 1),
        ("hermes", '<tool_call>{"function": {"arguments": "{\\"a\\": \\"x\\"}", "name": "f"}, '
         '"type": "function"}</tool_call>', "", 1),
        ("hermes", f'<tool_call>{{"function": {CALL}</tool_call>', "", 1),
        ("hermes", f'<tool_call>{{"function": {{"a": 1}}, {CALL[1:]}</tool_call>', "", 1),
        ("llama3_json", f'{{"function": {CALL}}}', "", 1),
        ("mistral", f'[TOOL_CALLS][{{"type": "function", "function": {CALL}}}]', "", 1),
        # A brace too many.
        ("hermes", f"<tool_call>{CALL}}}</tool_call>\n<tool_call>{CALL}\n}}</tool_call>", "", 2),
        ("llama3_json", f"{CALL}}}", "", 1),
        ("mistral", f"[TOOL_CALLS][{CALL}}}, {CALL}}}]", "", 2),
        ("granite", f"<tool_call>[{CALL}}}]", "", 1),
        ("deepseek_v31", DEEPSEEK + 'f<｜tool▁sep｜>{"a": "x"}}<｜tool▁call▁end｜>', "", 1),
        # A fence that the other format has, and none where it has one.
        ("deepseek_v31", DEEPSEEK + 'f<｜tool▁sep｜>```json\n{"a": "x"}\n```<｜tool▁call▁end｜>',
         "", 1),
        ("deepseek_v3", DEEPSEEK + 'function<｜tool▁sep｜>f\n{"a": "x"}<｜tool▁call▁end｜>', "", 1),
        # What follows a call is shown, and its end marks are not.
        ("hermes", f"<tool_call>{CALL} or </tool_call></tool_call>", " or </tool_call>", 1),
        ("qwen3_coder", "<function=f><parameter=a>x</parameter></function>?</tool_call>.", "?.", 1),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>"
         "</tool_call>", "</tool_call>", 1),
        ("deepseek_v31", DEEPSEEK + 'f<｜tool▁sep｜>{"a": "x"}?<｜tool▁call▁end｜>'
         "<｜tool▁calls▁end｜>.", "?.", 1),
        ("qwen3_coder", '<function="f">\n<parameter="a">\nx\n</parameter>\n</function>', "", 1),
        ("qwen3_coder", "<tool_call><function='f'><parameter=a>x</parameter></function>", "", 1),
    ],
)  # fmt: skip
def test_frames_that_models_write_around_calls_were_shown_as_text(name, text, content, calls):
    """Calls in lists, fences, other objects and quotes, and the marks after them, were content."""
    found = every_cut(name, text, SCHEMAS)
    expected = text if content is None else content
    assert found == (expected, [("f", '{"a": "x"}')] * calls, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepseek_v31", "f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("deepseek_v31", "f<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("deepseek_v31", "f<｜tool▁sep｜>\n<｜tool▁calls▁end｜>"),
        ("deepseek_v3", "function<｜tool▁sep｜>f<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("deepseek_v3", "function<｜tool▁sep｜>f\n```json\n```<｜tool▁call▁end｜>"),
    ],
)
def test_calls_of_deepseek_without_arguments_were_shown_as_text(name, text):
    """Their marks were content, and the function was not called."""
    assert every_cut(name, DEEPSEEK + text, SCHEMAS) == ("", [("f", "{}")], [])

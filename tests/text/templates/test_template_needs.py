"""Histories have the form that a template reads: the client's own wherever it takes that."""

from __future__ import annotations

import json

import pytest

from quire.core.errors import RequestError
from quire.text.json_scanner import complete_json
from quire.text.templates import chat_template, template_processes
from quire.text.templates.chat_template import ChatTemplate

#: How templates tell that a message has calls, and what they do with its content.
CONTENT = {
    "none is asked for": (
        "{% if m.content is none %}CALLS{% else %}<{{ m.content }}>{% endif %}{{ calls(m) }}"
    ),
    "only calls without content": (
        "{% if m.content is none %}{{ calls(m) }}{% else %}<{{ m.content }}>{% endif %}"
    ),
    "joined": "{{ '<' + m.content + '>' }}{{ calls(m) }}",
    "printed": "<{{ m.content }}>{{ calls(m) }}",
    "searched": "{% if 'a' in m.content %}{% endif %}<{{ m.content }}>{{ calls(m) }}",
    "written as JSON": (
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | tojson }}{% endif %}"
        "{{ calls(m) }}"
    ),
}
TAKE_NULL = ("none is asked for", "only calls without content")
#: How they write arguments.
ARGUMENTS = {
    "joined": "{{ '(' + a + ')' }}",
    "printed": "{{ a }}",
    "as JSON": "{{ a | tojson }}",
    "looped over": "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}",
    "text, or JSON": "{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
    "own form, or text": (
        "{% if a is mapping %}{% for k in a %}{{ k }}:{{ a[k] }}{% endfor %}{% else %}{{ a }}"
        "{% endif %}"
    ),
}
TAKE_TEXT = ("joined", "printed", "text, or JSON")
SENT = '{"city":  "Paris"}'
USER = {"role": "user", "content": "Weather?"}


def source(content: str, arguments: str) -> str:
    calls = f"{{% set a = c.function.arguments %}}[{{{{ c.function.name }}}} {arguments}]"
    return (
        f"{{% macro calls(m) %}}{{% for c in m.tool_calls or [] %}}{calls}{{% endfor %}}"
        f"{{% endmacro %}}{{% for m in messages %}}{content}{{% endfor %}}"
    )


def history(content: object, arguments: object, **more: object) -> list[dict[str, object]]:
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call12345", "type": "function", "function": function}
    asked = {"role": "assistant", "content": content, "tool_calls": [call], **more}
    result = {"role": "tool", "tool_call_id": "call12345", "content": "sunny"}
    return [USER, asked, result]


def render(template: str, messages: list[dict[str, object]]) -> str:
    return ChatTemplate({"default": template}, {}).render(messages, add_generation_prompt=False)


@pytest.fixture(scope="module")
def oracle():
    """Return what transformers' Jinja makes of messages, before it drops keys that are null."""
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")

    def rendered(template: str, messages: list[dict[str, object]]) -> str:
        return utilities.render_jinja_template([messages], chat_template=template)[0][0]

    return rendered


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("content", CONTENT)
def test_calls_without_content_equal_transformers(oracle, content, arguments):
    """Null content became empty text and text became an object, whatever the template read.

    Templates that ask for none then lost the calls; those that join arguments refused them.
    """
    template = source(CONTENT[content], ARGUMENTS[arguments])
    sent = history(None, SENT)
    taken = history(
        None if content in TAKE_NULL else "",
        SENT if arguments in TAKE_TEXT else json.loads(SENT),
    )
    want = oracle(template, taken)
    assert "weather" in want and "None" not in want
    assert render(template, sent) == want
    assert sent == history(None, SENT)  # the caller's messages stay as they are
    # Content that is there is never taken away.
    said = history("I look.", SENT)
    shown = history("I look.", taken[1]["tool_calls"][0]["function"]["arguments"])
    want = oracle(template, shown)
    assert render(template, said) == want


@pytest.mark.parametrize("content", CONTENT)
def test_an_answer_of_nothing_is_taken_back(content):
    """An assistant's message with neither content nor calls was refused."""
    template = source(CONTENT[content], ARGUMENTS["printed"])
    for answer in ({"content": None}, {}, {"content": ""}, {"content": None, "tool_calls": []}):
        prompt = render(template, [USER, {"role": "assistant", **answer}, USER])
        assert prompt.count("Weather?") == 2
        assert "None" not in prompt and "null" not in prompt


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"city": "Par', {"city": "Par"}),
        ('{"city": "Pa\\u00', {"city": "Pa"}),
        ('{"city": "\\ud83d', {"city": ""}),
        ('{"city": "\\ud83d"}', {"city": "\ufffd"}),
        ('{"a": [1, {"b": tr', {"a": [1, {"b": True}]}),
        ('{"a": 1, ', {"a": 1}),
        ('{"a": -', {"a": 0}),
        ("{", {}),
        ("", {}),
        ("Paris", {"arguments": "Paris"}),
        ("[1]", {"arguments": "[1]"}),
        ('{"a": 1} x', {"arguments": '{"a": 1} x'}),
    ],
)
def test_arguments_that_were_cut_are_taken_back(text, shown):
    """A call that ``max_tokens`` had cut was refused when it came back in the history."""
    as_json = source(CONTENT["joined"], ARGUMENTS["as JSON"])
    assert f"[weather {json.dumps(shown, ensure_ascii=False)}]" in render(
        as_json, history("", text)
    )
    joined = source(CONTENT["joined"], ARGUMENTS["joined"])
    assert f"[weather ({text})]" in render(joined, history("", text))


def test_every_beginning_of_a_json_object_can_be_completed():
    text = (
        '{"é\\n": ["\\\\ud83d", "\\ud83d\\ude00", 1.5e-3, {}], "b": {"c": [false, null]}, "d": 10}'
    )
    for length in range(1, len(text) + 1):
        value = json.loads(complete_json(text[:length]))
        assert isinstance(value, dict)
        json.dumps(value, ensure_ascii=False).encode()
    assert value == json.loads(text)
    assert complete_json('{"a" 1') is complete_json("{} x") is None


def test_objects_become_text_where_only_text_is_taken():
    joined = source(CONTENT["joined"], ARGUMENTS["joined"])
    assert '[weather ({"city": "Paris"})]' in render(joined, history("", {"city": "Paris"}))


def test_a_template_is_probed_once_and_only_for_histories_with_calls():
    class Counting(ChatTemplate):
        num_renders = 0

        def _render(self, name, variables):
            self.num_renders += 1
            return super()._render(name, variables)

    template = Counting({"default": source(CONTENT["joined"], ARGUMENTS["as JSON"])}, {})
    template.render([USER])
    assert template.num_renders == 1
    template.render(history(None, SENT))
    num_renders = template.num_renders
    assert num_renders <= 1 + 11 + 1
    template.render(history(None, SENT))
    assert template.num_renders == num_renders + 1


def test_a_template_that_takes_long_for_calls_is_not_probed_on(monkeypatch):
    """Each of eleven renders would take as long as a template may."""
    monkeypatch.setattr(template_processes, "RENDER_SECONDS", 0.2)
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    slow = (
        f"{{% for m in messages if m.tool_calls %}}{loops}{{% endfor %}}{{{{ messages | length }}}}"
    )
    asked = []
    render_one = template_processes.render

    def counting(*arguments):
        asked.append(arguments)
        return render_one(*arguments)

    monkeypatch.setattr(chat_template, "render", counting)
    with pytest.raises(RequestError, match="takes longer than"):
        render(slow, history(None, SENT))
    assert len(asked) <= 4
    assert render(slow, [USER]) == "1"


FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('one system message') }}{% endif %}[{{ m.role }}:{{ m.content }}]"
    "{% endfor %}"
)
FIRST_SHOWN = (
    "{{ messages[0].content if messages[0].role == 'system' }}"
    "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
)


def test_system_messages_are_one_where_a_template_takes_one():
    """A conversation that began with two was refused, or the second was lost."""
    systems = [{"role": "system", "content": text} for text in ("A", "B")]
    messages = [*systems, USER]
    assert render(FIRST_ONLY, messages) == "[system:A\nB][user:Weather?]"
    assert render(FIRST_SHOWN, messages) == "A\nB[Weather?]"
    every = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    assert render(every, messages) == "[system:A][system:B][user:Weather?]"

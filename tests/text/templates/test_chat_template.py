"""Chat templates render as transformers renders them, refuse bad messages, and stay in the box."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from pathlib import Path

import pytest

from quire.core.errors import ConfigError, RequestError
from quire.text.templates.chat_template import ChatTemplate, check_template
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.small_tokenizers import save_config

CHATML = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{% for message in messages if message.role != 'system' -%}
    {{ '<|im_start|>' + message.role + '\\n' + message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- set ns = namespace(system='Be brief.', today=strftime_now('%Y')) %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start|>system<|end|>\\n\\n' + ns.system }}
{%- if tools is not none %}
    {{- '\\nYou may call:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}}
        {%- continue %}
    {%- endif %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

INSTRUCTIONS = """\
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\\n\\n' %}
{% set loop_messages = messages[1:] %}{% else %}{% set system = '' %}
{% set loop_messages = messages %}{% endif %}
{{ bos_token }}{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}[INST] {{ system if loop.first else '' -}}
{{ message['content'] }} [/INST]
{%- elif message['role'] == 'assistant' %}
{% generation %} {{ message['content'] }}{{ eos_token }}{% endgeneration %}
{% endif %}{% endfor %}
"""

THINKING = """\
{%- macro turn(role, text) %}<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro -%}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ turn('user', '<result>\\n' ~ message.content ~ '\\n</result>') }}
{%- elif loop.last and message.role == 'assistant' and not add_generation_prompt -%}
<|im_start|>assistant
{{ message.content.split('</think>')[-1].lstrip('\\n') }}
{%- break %}
{%- else %}{{ turn(message.role, message.content) }}{% endif %}
{%- endfor %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson(ensure_ascii=True, sort_keys=True) }}
{% endfor %}{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "instructions": INSTRUCTIONS,
    "thinking": THINKING,
}

USER = {"role": "user", "content": " What is <b>bold</b> & 'quoted' in 東京?\n"}
CONVERSATIONS = {
    "one question": [USER],
    "with a system prompt": [{"role": "system", "content": " Answer in Latin. "}, USER],
    "several turns": [
        USER,
        {"role": "assistant", "content": "First\n\nanswer. "},
        {"role": "user", "content": "And then?"},
    ],
    "the model's turn": [USER, {"role": "assistant", "content": "It is"}],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The wéather in <city>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def oracle(folders):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folders["byte_level"])


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "<|im_end|>"})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_equals_transformers(oracle, name, conversation, tools, add_generation_prompt):
    messages = CONVERSATIONS[conversation]
    options = {"add_generation_prompt": add_generation_prompt, "enable_thinking": False}
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tools=tools, tokenize=False, **options
    )
    assert template(TEMPLATES[name]).render(messages, tools=tools, **options) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", ["It is", "It is \n", "", "ends with\x02"])
def test_continued_message_equals_transformers(oracle, name, text):
    messages = [USER, {"role": "assistant", "content": text}]
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    prompt = template(TEMPLATES[name]).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt == expected
    assert prompt.rstrip().endswith(text.rstrip())


def test_tool_calls_reach_the_template_as_objects(oracle):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"a": "é"}}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    expected = oracle.apply_chat_template(messages, chat_template=HEADERS, tokenize=False)
    wire = json.loads(json.dumps(messages))  # OpenAI's clients send arguments as text.
    wire[1]["tool_calls"][0]["function"]["arguments"] = '{"a": "é"}'
    wire[1]["content"] = None
    assert template(HEADERS).render(wire, add_generation_prompt=False) == expected
    assert wire[1]["content"] is None  # The caller's messages stay as they are.


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    prompt = template("{{ messages[0].content }}").render([{"role": "user", "content": parts}])
    assert prompt == "one\ntwo"


def test_default_messages_come_after_the_system_message():
    shown = template("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
    shown.default_messages = (USER | {"content": "1+1"}, {"role": "assistant", "content": "2"})
    asked = {"role": "user", "content": "2+2"}
    assert shown.render([asked]) == "user:1+1;assistant:2;user:2+2;"
    system = {"role": "system", "content": "Count."}
    for given in ([asked], [system, asked]):
        shown.default_system = "Count."
        assert shown.render(given) == "system:Count.;user:1+1;assistant:2;user:2+2;"
    assert shown.render([system]) == "system:Count.;user:1+1;assistant:2;"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ .Prompt }}", "got a Go template"),
        ("{{- range .Messages }}{{ .Content }}{{ end }}", "got a Go template"),
        ("{% for m in messages %}", "end of template"),
        ("a text", "got one that does not read messages"),
        ("{{ " + "(" * 5000, "must be a Jinja chat template"),
    ],
)
def test_what_is_no_chat_template_is_refused(source, said):
    check_template(CHATML)
    with pytest.raises(ConfigError, match=r"^\[template\] must be a Jinja chat template") as error:
        check_template(source)
    assert said in str(error.value)


BAD_MESSAGES = {
    "messages": [],
    "messages[0]": ["hello"],
    "messages[1]": [USER, {"content": "no role"}],
    "messages[0].content": [{"role": "user"}],
    "messages[0].content ": [{"role": "user", "content": 3}],
    "messages[0].content[1].type": [
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url"}]}
    ],
    "messages[0].content[0].text": [{"role": "user", "content": [{"type": "text"}]}],
    "messages[0].name": [{**USER, "name": object()}],
    "messages[0].tool_calls[0]": [{"role": "assistant", "content": "", "tool_calls": [3]}],
    "messages[0].tool_calls[1]": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"function": "f"}]}
    ],
    "messages[0].content[0].refusal": [{"role": "assistant", "content": [{"type": "refusal"}]}],
}


@pytest.mark.parametrize("param", BAD_MESSAGES)
def test_bad_messages_are_named(param):
    with pytest.raises(RequestError) as caught:
        template(CHATML).render(BAD_MESSAGES[param])
    assert caught.value.param == param.strip()


def test_what_is_nested_too_deeply_is_the_callers_error():
    nested, text = [], "[" * 100_000
    for _ in range(5000):
        nested = [nested]
    call = {"function": {"name": "f", "arguments": text}}
    for messages, options in (
        ([USER], {"variable": nested}),
        ([USER], {"tools": [{"function": nested}]}),
        ([{"role": "user", "content": "Hi", "more": nested}], {}),
        ([{"role": "assistant", "tool_calls": [call]}], {}),
    ):
        with pytest.raises(RequestError, match="nested that deeply"):
            template(CHATML).render(messages, **options)


def test_what_the_template_refuses_is_the_callers_error():
    messages = [USER, USER]
    with pytest.raises(RequestError, match=r"Roles must alternate user/assistant"):
        template(INSTRUCTIONS).render(messages)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].nothing.deeper }}", "{% for %}", "{{ 1 / 0 }}", "{{ 3 | nofilter }}"]
)
def test_template_errors_are_request_errors(source):
    with pytest.raises(RequestError, match="--chat-template"):
        template(source).render([USER])


HOSTILE = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch BROKEN').read() }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('BROKEN', 'w') }}",
    "{{ strftime_now.__globals__ }}",
    "{{ ('{0.__class__.__init__.__globals__}').format(strftime_now) }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__base__.__subclasses__() }}",
    "{{ messages.append({'role': 'user'}) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ self._TemplateReference__context.environment.loader }}",
    "{{ range(10 ** 9) | list }}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_templates_stay_in_the_sandbox(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(RequestError):
        # What the sandbox hides without an error reads as nothing.
        assert template(source).render([USER]) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "{{ m['content'][0]['text'] }}",
        "{% for c in m.content if c.type == 'text' %}{{ c.text }}{% endfor %}",
        "{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ c.text }}{% endfor %}",
    ],
)
def test_templates_that_read_parts_alone_lost_the_text(content):
    """MiniMax-M1's and SmolVLM's read parts: a text was refused, or not in the prompt."""
    source = f"{{% for m in messages %}}[{{{{ m.role }}}}]{content}{{% endfor %}}"
    template = ChatTemplate({"default": source}, {})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": parts},
    ]
    assert template.render(messages) == "[system]s[user]Hi[assistant][user]a\nb"
    more = template.render(messages[:2], add_generation_prompt=False, continue_final_message=True)
    assert more == "[system]s[user]Hi"


def test_options_that_cannot_be_combined():
    with pytest.raises(RequestError) as caught:
        template(CHATML).render(CONVERSATIONS["the model's turn"], continue_final_message=True)
    assert caught.value.param == "continue_final_message"
    with pytest.raises(RequestError) as caught:
        template(CHATML).render([USER], messages=[])
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(RequestError, match="leaves it out"):
        template("nothing").render([USER], add_generation_prompt=False, continue_final_message=True)


@pytest.fixture
def model(folders, tmp_path) -> Path:
    shutil.copy(folders["byte_level"] / "tokenizer.json", tmp_path)
    save_config(tmp_path, tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>")
    return tmp_path


def rendered(folder: Path, override: str | None = None, **options) -> str:
    found = load_tokenizer(folder, override).chat_template
    assert found is not None
    return found.render([USER], **options)


def test_where_the_template_comes_from(model):
    assert load_tokenizer(model).chat_template is None
    save_config(model, bos_token="<s>", chat_template="{{ bos_token }} from the configuration")
    assert rendered(model) == "<s> from the configuration"
    named = [
        {"name": "default", "template": "default of the list"},
        {"name": "tool_use", "template": "for tools"},
    ]
    save_config(model, chat_template=named)
    assert rendered(model) == "default of the list"
    assert rendered(model, tools=TOOLS) == "for tools"
    (model / "chat_template.json").write_text('{"chat_template": "of a processor"}')
    assert rendered(model) == "of a processor"
    (model / "chat_template.jinja").write_text("from the file")
    assert rendered(model, tools=TOOLS) == "from the file"
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("file for tools")
    assert rendered(model, tools=TOOLS) == "file for tools"
    (model / "mine.jinja").write_text("mine")
    assert rendered(model, str(model / "mine.jinja"), tools=TOOLS) == "mine"


def test_named_templates_without_a_default(model):
    save_config(model, chat_template=[{"name": "rag", "template": ""}])
    with pytest.raises(RequestError, match="default template"):
        rendered(model)


@pytest.mark.parametrize("content", [None, "{% for %}", b"\xff"])
def test_bad_override_names_its_flag(model, content):
    path = model / "mine.jinja"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match="--chat-template must be a readable Jinja file"):
        load_tokenizer(model, str(path))


def test_a_template_that_is_nested_too_deeply_harms_no_list_of_models():
    """To ask whether it shows tools raised RecursionError, which no caller expects there."""
    source = "{{ messages }}{{" + "(" * 3000 + "1" + ")" * 3000 + "}}"
    template = ChatTemplate({"default": source}, {})
    assert not template.shows_tools
    with pytest.raises(RequestError, match="recursion"):
        template.render([{"role": "user", "content": "Hi"}])

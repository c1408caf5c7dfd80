"""Templates that models were published with render as transformers renders them.

They are in llama.cpp's sources, of which none is kept here.
"""

from __future__ import annotations

import warnings

import pytest

from quire.core.errors import RequestError
from quire.text.templates.chat_template import ChatTemplate

NAMES = (
    "CohereForAI-c4ai-command-r-plus-tool_use", "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6", "HuggingFaceTB-SmolLM3-3B", "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct", "ibm-granite-granite-4.0",
    "meta-llama-Llama-3.1-8B-Instruct", "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)  # fmt: skip
USER = {"role": "user", "content": " What is <b>bold</b> & 'quoted' in 東京?\n"}
TURNS = [USER, {"role": "assistant", "content": "An answer. "}, {"role": "user", "content": "So?"}]
CONVERSATIONS = {
    "question": [USER],
    "system": [{"role": "system", "content": " Answer in Latin. "}, USER],
    "turns": TURNS,
    "two questions": [USER, USER],
}
CITY = {"type": "string", "description": "Its <name>"}
TOOL = {
    "name": "weather",
    "description": "The wéather in a city",
    "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": TOOL}]
#: Arguments as a client sends them, and as an object, for templates that do not take text.
TEXT, OBJECT = '{"city":  "Paris"}', {"city": "Paris"}
#: What each template takes of a call: content that is null or else empty, and arguments.
CALLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use": ("", OBJECT),
    "GLM-4.6": ("", OBJECT),
    "HuggingFaceTB-SmolLM3-3B": (None, OBJECT),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": (None, TEXT),
    "Qwen-QwQ-32B": ("", OBJECT),
    "Qwen-Qwen2.5-7B-Instruct": (None, OBJECT),
    "Qwen3-Coder": (None, OBJECT),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": (None, TEXT),
    "deepseek-ai-DeepSeek-V3.1": (None, OBJECT),
    "meta-llama-Llama-3.1-8B-Instruct": (None, OBJECT),
    "moonshotai-Kimi-K2": (None, OBJECT),
    "openai-gpt-oss-120b": ("", OBJECT),
    "unsloth-mistral-Devstral-Small-2507": ("", TEXT),
}


@pytest.fixture(scope="module")
def tokenizer(folders):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folders["byte_level"])


@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name, tokenizer, llama_source):
    """Where a template refuses a conversation, such as one with a system message, both refuse."""
    from jinja2 import TemplateError

    source = (llama_source / "models/templates" / f"{name}.jinja").read_text()
    template = ChatTemplate({"default": source}, tokenizer.special_tokens_map)
    rendered = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, TOOLS):
            options = {"tools": tools, "add_generation_prompt": True}
            try:
                want = tokenizer.apply_chat_template(
                    messages, chat_template=source, tokenize=False, **options
                )
            except (TemplateError, TypeError):
                with pytest.raises(RequestError):
                    template.render(messages, **options)
                continue
            assert template.render(messages, **options) == want
            rendered += 1
    assert rendered


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_the_history_equal_transformers(name, tokenizer, llama_source):
    """Content that is null became empty text, and arguments always became an object."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def history(content, arguments):
        function = {"name": "weather", "arguments": arguments}
        call = {"id": "call12345", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": "call12345", "content": "sunny"}
        return [USER, {"role": "assistant", "content": content, "tool_calls": [call]}, result]

    source = (llama_source / "models/templates" / f"{name}.jinja").read_text()
    template = ChatTemplate({"default": source}, tokenizer.special_tokens_map)
    options = {"tools": TOOLS, "add_generation_prompt": True, "date_string": "today"}
    (want,), _ = render_jinja_template(
        [history(*CALLS[name])], chat_template=source, **options, **tokenizer.special_tokens_map
    )
    assert template.render(history(None, TEXT), **options) == want

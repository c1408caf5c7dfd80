"""The three tiers: what is honoured, refused by name, or reported as ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.core.errors import RequestError
from quire.core.speculative_params import SpeculativeParams
from quire.protocol.decode import decode_body
from quire.protocol.generation import GenerationRequest
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.openai.responses import ResponsesRequest
from quire.protocol.request_fields import HARMLESS

DOCS = Path(__file__).parents[2] / "docs" / "server.md"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"prompt": "Hi"}
REFUSED_CHAT, REFUSED_COMPLETION = ChatCompletionRequest.refused, CompletionRequest.refused
KINDS = [
    pytest.param(ChatCompletionRequest, CHAT, REFUSED_CHAT, id="chat"),
    pytest.param(CompletionRequest, TEXT, REFUSED_COMPLETION, id="completion"),
]

# Every field that clients of vLLM may send; each must be in exactly one tier.
_NAMES = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice
parallel_tool_calls reasoning_effort user top_k min_p repetition_penalty length_penalty
use_beam_search stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt continue_final_message
add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids return_prompt_text return_token_offsets cache_salt kv_transfer_params vllm_xargs
repetition_detection stream_interval thinking_token_budget include_reasoning watermarking best_of
guided_json guided_regex guided_choice guided_grammar metadata store
"""
KNOWN_CHAT = _NAMES.split()
ONLY_CHAT = {
    "messages", "top_logprobs", "max_completion_tokens", "add_generation_prompt",
    "continue_final_message", "chat_template_kwargs",
}  # fmt: skip
KNOWN_COMPLETION = [
    *(name for name in KNOWN_CHAT if name not in ONLY_CHAT), "prompt", "suffix", "prompt_embeds",
]  # fmt: skip


def decode(kind, body):
    return decode_body(json.dumps(body).encode(), kind)


@pytest.mark.parametrize(("kind", "base", "refused"), KINDS)
def test_tiers_do_not_overlap(kind, base, refused):
    supported = set(kind.__struct_fields__)
    assert not supported & set(refused)
    assert not supported & HARMLESS
    assert not set(refused) & HARMLESS


@pytest.mark.parametrize(
    ("kind", "refused", "known"),
    [
        (ChatCompletionRequest, REFUSED_CHAT, KNOWN_CHAT),
        (CompletionRequest, REFUSED_COMPLETION, KNOWN_COMPLETION),
    ],
)
def test_every_known_field_has_a_tier(kind, refused, known):
    tiers = {*kind.__struct_fields__, *refused, *HARMLESS, "best_of"}
    assert set(known) <= tiers


@pytest.mark.parametrize(("kind", "base", "refused"), KINDS)
def test_refused_fields_are_named(kind, base, refused):
    for name in refused:
        with pytest.raises(RequestError) as caught:
            decode(kind, {**base, name: {"asks": "something"}})
        assert caught.value.param == name
        assert f"[{name}]" in str(caught.value)


@pytest.mark.parametrize(("kind", "base", "refused"), KINDS)
def test_neutral_values_are_accepted(kind, base, refused):
    for name, values in refused.items():
        for value in (None, *values):
            assert decode(kind, {**base, name: value})[1] == []
    for name in HARMLESS:
        assert decode(kind, {**base, name: {"any": 1}})[1] == []


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({"best_of": 1}, True),
        ({"best_of": None}, True),
        ({"best_of": 3, "n": 3}, True),
        ({"best_of": 3}, False),
        ({"best_of": 3, "n": 2}, False),
    ],
)
def test_best_of_must_equal_n(fields, fine):
    if fine:
        assert decode(CompletionRequest, TEXT | fields)[1] == []
    else:
        with pytest.raises(RequestError) as caught:
            decode(CompletionRequest, TEXT | fields)
        assert caught.value.param == "best_of"


def test_unknown_fields_are_named_with_their_place():
    body = {
        **CHAT,
        "foo": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "bar": 2},
        "messages": [{"role": "user", "content": "Hi", "baz": 3}],
        "temperature": 0.5,
    }
    request, ignored = decode(ChatCompletionRequest, body)
    assert ignored == ["foo", "stream_options.bar", "messages[].baz"]
    assert request.temperature == 0.5


def test_unknown_fields_are_named_however_deep():
    function = {"name": "f", "parameters": {"type": "object", "x-ours": 1}, "b": 1}
    call = {"id": "1", "function": {"name": "f", "arguments": "{}", "d": 1}, "index": 0}
    parts = [{"type": "text", "text": "a", "e": 1}, {"type": "text", "text": "b", "e": 2}]
    body = {
        "tools": [{"type": "function", "function": function, "a": 1}],
        "tool_choice": {"type": "function", "function": {"name": "f"}, "c": 1},
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "tool_calls": [call]},
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"y": 1}},
        },
    }
    assert set(decode(ChatCompletionRequest, body)[1]) == {
        "tools[].a", "tools[].function.b", "tool_choice.c", "messages[].content[].e",
        "messages[].tool_calls[].index", "messages[].tool_calls[].function.d",
    }  # fmt: skip
    tool = {"type": "function", "name": "f", "parameters": {"z": 1}, "g": 1}
    body = {
        "input": "Hi",
        "tools": [tool],
        "text": {"format": {"type": "json_schema", "schema": {}}},
    }
    assert decode(ResponsesRequest, body)[1] == ["tools[].g"]


def table() -> str:
    """The table of docs/server.md, from the code."""
    shared = set(GenerationRequest.__struct_fields__)
    chat = set(ChatCompletionRequest.__struct_fields__) - shared
    text = set(CompletionRequest.__struct_fields__) - shared
    rows = {
        "supported by both": shared,
        "supported by chat completions": chat,
        "supported by completions": text,
        "accepted, no effect on the output": HARMLESS,
        "refused by both, unless null or neutral": (set(REFUSED_CHAT) & set(REFUSED_COMPLETION)),
        "refused by chat completions only": set(REFUSED_CHAT) - set(REFUSED_COMPLETION),
        "refused by completions only": set(REFUSED_COMPLETION) - set(REFUSED_CHAT),
    }
    lines = ["| tier | fields |", "|---|---|"]
    for tier, names in rows.items():
        lines.append(f"| {tier} | {', '.join(f'`{name}`' for name in sorted(names))} |")
    return "\n".join(lines)


def test_the_documented_table_is_the_code_s():
    assert table() in DOCS.read_text(), f"docs/server.md must hold:\n{table()}"


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        (False, SpeculativeParams(num_speculative_tokens=0)),
        (True, None),
        (None, None),
        ({}, SpeculativeParams()),
        (
            {"method": "ngram", "tokens": 3},
            SpeculativeParams(method="ngram", num_speculative_tokens=3),
        ),
        ({"num_speculative_tokens": 0}, SpeculativeParams(num_speculative_tokens=0)),
        ({"acceptance": "rejection"}, SpeculativeParams(acceptance="rejection")),
    ],
)
@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, ResponsesRequest])
def test_what_a_request_asks_of_speculation(kind, field, asked):
    base = {ChatCompletionRequest: CHAT, CompletionRequest: TEXT, ResponsesRequest: {"input": "Hi"}}
    request, ignored = decode(kind, {**base[kind], "speculative": field})
    assert ignored == []
    if kind is ResponsesRequest:
        request = request.chat_request([])
    assert request.sampling_params({}, 4, None).speculative == asked


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (1, "[speculative] Expected `bool | object | null`, got `int`"),
        ("off", "[speculative] Expected `bool | object | null`, got `str`"),
        ([], "[speculative] Expected `bool | object | null`, got `array`"),
        ({"depth": 3}, "[speculative] Object contains unknown field `depth`"),
        ({"tokens": -1}, "[speculative.tokens] Expected `int` >= 0"),
        ({"tokens": 65}, "[speculative.tokens] Expected `int` <= 64"),
        ({"tokens": 1.5}, "[speculative.tokens] Expected `int"),
        ({"method": "magic"}, "[speculative.method] Invalid enum value 'magic'"),
        ({"acceptance": "typical"}, "[speculative.acceptance] Invalid enum value 'typical'"),
        (
            {"tokens": 1, "num_speculative_tokens": 2},
            "[speculative.tokens] must be what num_specul",
        ),
    ],
)
@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_wrong_types_of_speculation_are_named(kind, field, words):
    base = CHAT if kind is ChatCompletionRequest else TEXT
    with pytest.raises(RequestError) as caught:
        request, _ = decode(kind, {**base, "speculative": field})
        request.sampling_params({}, 4, None)
    assert str(caught.value).startswith(words)
    assert caught.value.param is not None and caught.value.param.startswith("speculative")

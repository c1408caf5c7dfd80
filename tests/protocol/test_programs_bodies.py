"""Bodies that programs send to servers of OpenAI's API, and what they become."""

from __future__ import annotations

import json

import pytest

from quire.core.errors import RequestError
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.protocol.decode import decode_body
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.openai.response_input import ResponseInput
from quire.protocol.openai.responses import ResponsesRequest

HELLO = {"role": "user", "content": "Hi"}


def decode(kind=ChatCompletionRequest, **body):
    return decode_body(json.dumps(body).encode(), kind)


def shown(message):
    request, ignored = decode(messages=[message])
    return request.messages[0].for_template(0), ignored


@pytest.mark.parametrize(
    ("parts", "content", "reasoning"),
    [
        ([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}], "So.", "Hm."),
        # Mistral's.
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "H"}, {"text": "m."}]}],
         [], "Hm."),
        # LangChain's, with and without a text.
        ([{"type": "reasoning", "reasoning": "H."}, {"type": "text", "text": "So."}], "So.", "H."),
        ([{"type": "reasoning", "id": "rs_1"}, {"type": "text", "text": "So."}], "So.", ""),
    ],
)  # fmt: skip
def test_parts_that_are_thoughts_were_refused(parts, content, reasoning):
    """A history of another server's answers was a 400: the model takes text only."""
    message, _ = shown({"role": "assistant", "content": parts})
    texts = [{"type": "text", "text": content}] if content else []
    assert (message["content"] or []) == texts
    assert message["reasoning"] == message["reasoning_content"] == reasoning


def test_thoughts_of_others_than_an_assistant_stay_what_they_are():
    parts = [{"type": "thinking", "thinking": "Hm."}]
    assert shown({"role": "user", "content": parts})[0] == {"role": "user", "content": parts}


@pytest.mark.parametrize("fields", [{}, {"content": None}])
def test_a_tool_s_empty_result_was_refused(fields):
    """The AI SDK sends a result of undefined without content."""
    message, ignored = shown({"role": "tool", "tool_call_id": "c", **fields})
    assert message == {"role": "tool", "content": "", "tool_call_id": "c"} and not ignored


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_prefix_was_only_named(name):
    """The answer began anew; Mistral's, DeepSeek's, Kimi's and Qwen's servers go on with it."""
    begun = {"role": "assistant", "content": "It", name: True}
    request, ignored = decode(messages=[HELLO, begun])
    assert (
        request.continues_last and not ignored and name not in request.messages[1].for_template(1)
    )
    assert not decode(messages=[begun, HELLO])[0].continues_last
    assert not decode(messages=[{**HELLO, name: True}])[0].continues_last
    for fields in ({"continue_final_message": False}, {"add_generation_prompt": True}):
        with pytest.raises(RequestError, match="continue_final_message"):
            decode(messages=[HELLO, begun], **fields)[0].check()


def test_no_limit_is_minus_one_for_lm_studio():
    """Its documents' first request was a 400."""
    for name in ("max_tokens", "max_completion_tokens"):
        assert decode(messages=[HELLO], **{name: -1})[0].output_limit is None
        assert decode(messages=[HELLO], **{name: -2})[0].output_limit == -2


def test_responses_take_enable_thinking():
    """It was only named in ``X-Ignored-Params``."""
    request, ignored = decode(ResponsesRequest, input="Hi", enable_thinking=False)
    assert not ignored and request.efforts() == [("enable_thinking", False)]
    assert request.chat_request([]).enable_thinking is False


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, ResponsesRequest])
@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
        ({"json_schema": {"type": "null"}}, ("json", '{"type":"null"}')),
        ({"json_schema": "{}"}, ("json", "{}")),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"ebnf": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
        ({"grammar": "", "regex": None}, None),
    ],
)
def test_constraints_of_llama_server_and_sglang_were_refused(kind, fields, asked):
    """Their clients' own fields were a 400 that named ours."""
    body = {"messages": [HELLO]} if kind is ChatCompletionRequest else {}
    body |= {"prompt": "a"} if kind is CompletionRequest else {}
    body |= {"input": "a"} if kind is ResponsesRequest else {}
    request, ignored = decode(kind, **body, **fields)
    found = request.constraint()
    assert not ignored and (found and (found.kind, found.constraint)) == asked
    assert request.constraint_field == (next(iter(fields)) if asked else None)


def test_two_constraints_are_one_too_many():
    request, _ = decode(messages=[HELLO], grammar='root ::= "a"', response_format={"type": "json"})
    with pytest.raises(RequestError, match="at most one field may ask for structured output"):
        request.constraint()


def test_all_fields_of_vllm_s_structured_outputs():
    """Clients send the whole of its class, whose other fields ask for nothing."""
    given = {"json": {}, "regex": None, "backend": "xgrammar", "disable_fallback": True}
    neutral = {"disable_additional_properties": False, "whitespace_pattern": None}
    neutral["structural_tag"] = None
    request, ignored = decode(messages=[HELLO], structured_outputs=given | neutral)
    assert not ignored and request.constraint() == StructuredOutputs(json={})
    assert StructuredOutputs(**given, **neutral) == StructuredOutputs(json={})
    params = SamplingParams(structured_outputs=given | neutral)
    assert params.structured_outputs == StructuredOutputs(json={})
    for name, value in zip(neutral, (True, "[ ]", "{}"), strict=True):
        request, _ = decode(messages=[HELLO], structured_outputs={"json": {}, name: value})
        with pytest.raises(RequestError, match=f"{name} is not supported; got"):
            request.constraint()


def test_calls_of_a_history_are_added_to_one_list():
    """Each call copied those before it: 65,000 of one answer took 3.5 seconds of a processor."""
    item = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "a"}
    found = ResponseInput(False, lambda item_id: None)
    found.read([item])
    calls = found.messages[-1].tool_calls
    found.read([item, item])
    assert found.messages[-1].tool_calls is calls and len(calls) == 3

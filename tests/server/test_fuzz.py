"""Any value in any field: an answer or a clear 400, never a failure, never a hang."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.protocol.anthropic.anthropic import AnthropicRequest
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.openai.responses import ResponsesRequest
from tests.sizes import sized

#: How long an answer is; values of their own, so that the test stays quick.
LENGTHS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "n"}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 400)
    | st.sampled_from([2**31, 2**63, -(2**63), 10**25, 1e300, -0.0, 1e-300])
    | st.floats(-10, 10)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def few(kind):
    """Bodies with up to three fuzzed fields."""
    names = sorted({*kind.__struct_fields__, *kind.refused, "unknown"} - LENGTHS)
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=3)


#: Turns of Anthropic's shape, whose blocks have some of the fields of all kinds.
KINDS = (
    "text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use",
    "tool_result", "mid_conv_system", "server_tool_use",
)  # fmt: skip
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "image"))}, optional={"text": VALUES}
)
SOURCE = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "content", "base64"))},
    optional={"data": SCALARS, "content": st.lists(PART, max_size=2) | SCALARS},
)
FIELDS = {
    "text": st.text(max_size=5) | VALUES,
    "source": SOURCE | VALUES,
    "content": st.lists(PART, max_size=2) | VALUES,
    "thinking": st.text(max_size=5) | VALUES,
    "input": st.dictionaries(st.text(max_size=3), VALUES, max_size=2) | VALUES,
    "citations": VALUES,
    "cache_control": VALUES,
} | dict.fromkeys(("id", "name", "tool_use_id", "title", "data"), st.just("x") | SCALARS)
BLOCK = st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional=FIELDS)
LIKELY = st.sampled_from(
    (
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
        {"type": "thinking", "thinking": "b", "signature": ""},
        {"type": "mid_conv_system", "content": []},
    )
)
TURN = st.fixed_dictionaries(
    {
        "role": st.sampled_from(("user", "assistant", "system")),
        "content": st.lists(LIKELY | BLOCK, max_size=3) | st.text(max_size=3),
    }
)


@pytest.mark.parametrize(
    ("path", "base", "strategy"),
    [
        (
            "/v1/completions",
            {"prompt": "Hi", "max_tokens": 2},
            few(CompletionRequest),
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
            few(ChatCompletionRequest),
        ),
        (
            "/v1/responses",
            {"input": "Hi", "max_output_tokens": 2},
            few(ResponsesRequest),
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
            few(AnthropicRequest),
        ),
        (
            "/v1/messages",
            {"max_tokens": 2},
            st.fixed_dictionaries({"messages": st.lists(TURN, min_size=1, max_size=3)}),
        ),
    ],
)
def test_no_value_breaks_the_server(live, path, base, strategy):
    seen = set()

    @settings(
        max_examples=sized(50, 150),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check(fields):
        if type(fields.get("timeout")) in (int, float) and 0 < fields["timeout"] < 60:
            fields = fields | {"timeout": fields["timeout"] + 60}  # no deadline that may be missed
        content = json.dumps(base | fields).encode()
        response = live.http.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        seen.add(response.status_code)
        if response.status_code == 200:
            assert '"error":{' not in response.text
        else:
            assert response.status_code in (400, 404), (fields, response.text)
            error = response.json()["error"]
            assert error["message"]
            assert error.get("code", response.status_code) == response.status_code

    check()
    assert seen >= {200, 400}
    live.wait_until_idle()

"""What a conversation costs to render, told before it is: a long one must not hold up the loop."""

from __future__ import annotations

import pytest

from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import CalledFunction, FunctionDefinition, Tool, ToolCall
from quire.server.generation.prompts.tokenized_prompts import Conversation
from quire.text.offloading import INLINE_CHARACTERS

HELLO = Message(role="user", content="Hi")
CALL = ToolCall(id="a", function=CalledFunction(name="f", arguments="{}"))
TOOL = Tool(function=FunctionDefinition(name="f"))
LONG = "x" * INLINE_CHARACTERS


def size(*messages, kwargs=None, tools=None):
    return len(Conversation([HELLO, *messages], None, None, kwargs, tools))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kwargs": {"enable_thinking": True, "budget": 5, "effort": "high", "nothing": None}},
        {"kwargs": {}, "tools": []},
    ],
)
def test_short_ones_are_rendered_at_once(given):
    assert size(Message(role="assistant", content=None, tool_calls=[]), **given) < INLINE_CHARACTERS


@pytest.mark.parametrize(
    "message",
    [
        {"content": LONG},
        {"content": [{"type": "text", "text": "a"}]},
        {"reasoning": LONG},
        {"reasoning_content": LONG},
        {"name": LONG},
        {"tool_call_id": LONG},
        {"tool_calls": [CALL]},
    ],
)
def test_whatever_a_message_holds_counts(message):
    assert size(Message(**{"role": "assistant", "content": "", **message})) >= INLINE_CHARACTERS


@pytest.mark.parametrize(
    "given", [{"tools": [TOOL]}, {"kwargs": {"a": LONG}}, {"kwargs": {"a": ["b"]}}]
)
def test_what_stands_beside_the_messages_counts(given):
    """100 KB of tools were rendered on the loop because the message was short."""
    assert size(**given) >= INLINE_CHARACTERS


def test_many_short_messages_are_long():
    assert size(*[HELLO] * 200) >= INLINE_CHARACTERS

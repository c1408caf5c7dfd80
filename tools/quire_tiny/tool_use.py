"""Chats with tools: the call, its response, the answer; or an answer at once, if no tool helps."""

from __future__ import annotations

import json
from random import Random

from tools.quire_tiny.question import Chat, Message, turn
from tools.quire_tiny.small_talk import UNKNOWN
from tools.quire_tiny.system_prompts import PLAIN, Draw
from tools.quire_tiny.tool_kit import KIT, Call, Tool, draw_call, schema

JOINS = ("{a} {b}", "{a} And {b}", "{a} Also: {b}")
# The kinds of simple questions that a calculator would take.
CALCULATED = frozenset(
    "add subtract multiply divide compare neighbour count parity double half word_problem".split()
)
Turn = tuple[str, list[Message], bool]


def call_message(calls: list[Call]) -> Message:
    """Return the assistant's message that makes calls, in OpenAI's form."""
    listed = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {
                "name": call.tool.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for i, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def written(message: Message) -> str:
    """Return an assistant's message as the model writes it."""
    texts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        texts.append(
            f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
            "\n</tool_call>"
        )
    return "\n".join(texts)


def call_turn(rng: Random, tools: list[Tool], pairs: float) -> Turn:
    """Draw a question that one call answers, or two calls, which is the share ``pairs`` of them."""
    calls = [draw_call(rng, rng.choice(tools))]
    prompt, kind = calls[0].prompt, "tool_call"
    if rng.random() < pairs:
        calls.append(draw_call(rng, calls[0].tool if rng.random() < 0.5 else rng.choice(tools)))
        kind = "tool_parallel"
        prompt = rng.choice(JOINS).format(a=calls[0].prompt, b=calls[1].prompt)
    responses = [
        {"role": "tool", "tool_call_id": f"call_{i}", "content": call.response}
        for i, call in enumerate(calls)
    ]
    answer = " ".join(call.answer for call in calls)
    messages = [
        {"role": "user", "content": prompt},
        call_message(calls),
        *responses,
        {"role": "assistant", "content": answer},
    ]
    return kind, messages, any(call.held_out for call in calls)


def plain_turn(rng: Random, tools: list[Tool], draw: Draw) -> Turn:
    """Draw what the model knows itself, or what only a tool that is not there could find."""
    names = {tool.name for tool in tools}
    while True:
        if rng.random() < 0.6:
            question = draw(rng)
            if question.kind not in CALCULATED or "calculate" not in names:
                return "tool_none", turn(question.prompt, question.answer), question.held_out
        else:
            call = draw_call(rng, rng.choice(KIT))
            if call.tool.name not in {*names, "calculate"}:
                return "tool_missing", turn(call.prompt, UNKNOWN), call.held_out


def draw_chat(
    rng: Random, draw: Draw, held_out: bool, pairs: float = 0.14, plain: float = 0.2
) -> Chat:
    """Draw a chat with tools whose last turn is of the wanted split, the others trained on.

    ``draw`` makes the questions that need no tool. ``plain`` is the share of turns without a call,
    ``pairs`` that of two calls among the others.
    """
    tools = rng.sample(KIT, rng.choices((0, 1, 2, 3, 4), (4, 34, 34, 18, 10))[0])
    num_turns = rng.choice((1, 2, 3, 4, 4)) if tools else 1
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(PLAIN)})
    kind = ""
    for i in range(num_turns):
        wanted = held_out and i == num_turns - 1
        while True:
            if not tools or rng.random() < plain:
                kind, more, out = plain_turn(rng, tools, draw)
            else:
                kind, more, out = call_turn(rng, tools, pairs)
            if out == wanted:
                break
        messages += more
    return Chat(kind, "", messages, held_out, [schema(rng, tool) for tool in tools])

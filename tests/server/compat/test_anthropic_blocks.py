"""Anthropic's content blocks do not depend on how the text is cut."""

from __future__ import annotations

import random

import pytest

from quire.server.compat.anthropic_answer import AnswerBlocks, content_of
from quire.server.generation.answer_parser import AnswerParser
from quire.text.reasoning_parsers.reasoning import FORMATS

CALL = '{"name": "f", "arguments": {"x": "a > b [1] {2}", "y": []}}'
LLAMA = '{"name": "f", "parameters": {"x": "a > b"}}'
TEXTS = {
    "hermes": (
        f"<think>\nHm {{1}} > 0.\n</think>\n\nSee [1]: <tool_call>\n{CALL}\n</tool_call>\n"
        f"<tool_call>{CALL}</tool_call> And <b>then</b> <tool_call> no </tool_call>"
        f'<tool_call>{{"name": "g", "arguments": {{x}}}}</tool_call> end'
    ),
    "mistral": f"Well [a].[TOOL_CALLS][{CALL}, {CALL}] More {{x}}. [TOOL_CALLS]f{{}} end",
    "llama3_json": f"<|python_tag|>{LLAMA}; {LLAMA} then <|python_tag|>{LLAMA}",
}


def blocks_of(form: str, pieces: list[str]):
    """Return the blocks, without ids, and what is wrong with the calls."""
    blocks, parser = AnswerBlocks(form, True), AnswerParser(FORMATS["qwen3"], False, form)
    events = []
    for number, piece in enumerate(pieces, start=1):
        blocks.read(parser, piece, number == len(pieces))
        events += blocks.take()
    joined = []
    for event in events:
        if event["type"] != "content_block_delta":
            joined.append(event)
            continue
        ((name, more),) = (item for item in event["delta"].items() if item[0] != "type")
        last = joined[-1]
        if last["type"] == "content_block_delta" and name in last["delta"]:
            more = last["delta"][name] + more
            joined.pop()
        joined.append({**event, "delta": {**event["delta"], name: more}})
    inputs, errors = blocks.inputs(parser.broken)
    content = content_of(joined, inputs)
    return [{**block, "id": ""} for block in content], [*parser.errors, *errors], joined


@pytest.mark.parametrize("form", TEXTS)
def test_blocks_do_not_depend_on_the_cuts(form):
    text = TEXTS[form]
    content, errors, _ = blocks_of(form, [*text])
    assert {block["type"] for block in content} >= {"text", "tool_use"}
    chosen = random.Random(5)
    cuts = [[], *([at] for at in range(1, len(text)))]
    cuts += [sorted(chosen.sample(range(1, len(text)), 8)) for _ in range(200)]
    for cut in cuts:
        ends = [0, *cut, len(text)]
        pieces = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        assert blocks_of(form, pieces)[:2] == (content, errors), cut


def test_kinds_and_order():
    content, errors, events = blocks_of("hermes", [TEXTS["hermes"]])
    kinds = [block["type"] for block in content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text", "text"], content
    assert len(errors) == 1 and "JSON object" in errors[0], "the call that cannot be made"
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [*range(7)]
    call = content[2]
    assert call["name"] == "f" and call["input"] == {"x": "a > b [1] {2}", "y": []}

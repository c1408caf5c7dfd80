"""What a schema cannot say of ``/v1/responses``: the order of a stream's events, and the answer.

Each rule returns what is wrong as text, or None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema

Event = dict[str, Any]
Item = dict[str, Any]

#: Last event of a stream, by the status of the response it carries.
ENDINGS = {f"response.{status}": status for status in ("completed", "incomplete", "failed")}
#: The events of one item from first to last; ``*`` may come any number of times.
_ORDER = {
    "message": (
        "output_item.added", "content_part.added", "output_text.delta*", "output_text.done",
        "content_part.done", "output_item.done",
    ),
    "reasoning": (
        "output_item.added", "content_part.added", "reasoning_text.delta*", "reasoning_text.done",
        "content_part.done", "output_item.done",
    ),
    "function_call": (
        "output_item.added", "function_call_arguments.delta*", "function_call_arguments.done",
        "output_item.done",
    ),
}  # fmt: skip


def order(events: list[Event]) -> str | None:
    """The stream begins, tells of each item from its first event to its last, and ends once."""
    numbers = [event["sequence_number"] for event in events]
    if numbers != list(range(len(events))):
        return f"sequence numbers {numbers[:20]}"
    kinds = [event["type"] for event in events]
    if kinds[:2] != ["response.created", "response.in_progress"]:
        return f"it begins with {kinds[:2]}"
    if kinds[-1] not in ENDINGS:
        return f"it ends with {kinds[-1]}"
    for event in events[:2]:
        if event["response"]["status"] != "in_progress" or event["response"]["output"]:
            return f"{event['type']} with status {event['response']['status']} or output"
    final = events[-1]["response"]
    if final["status"] != ENDINGS[kinds[-1]]:
        return f"{kinds[-1]} with status {final['status']}"
    if len({event["response"]["id"] for event in (*events[:2], events[-1])}) != 1:
        return "responses of several ids"
    strange = [e["type"] for e in events[2:-1] if "output_index" not in e]
    if strange:
        return f"{strange[0]} between the beginning and the end"
    return _first(_items(events[2:-1], final["output"]))


def _items(events: list[Event], output: list[Item]) -> Iterator[str | None]:
    indices = list(dict.fromkeys(event["output_index"] for event in events))
    if indices != list(range(len(output))):
        yield f"items begin as {indices} where the response has {len(output)}"
        return
    for index, item in enumerate(output):
        own = [event for event in events if event["output_index"] == index]
        problem = _item(own, item)
        yield None if problem is None else f"item {index}: {problem}"


def _item(events: list[Event], item: Item) -> str | None:
    pattern = "".join(
        f"(?:{re.escape(step.removesuffix('*'))} ){'*' if step.endswith('*') else ''}"
        for step in _ORDER.get(item["type"], ())
    )
    kinds = "".join(f"{event['type'].removeprefix('response.')} " for event in events)
    if not re.fullmatch(pattern, kinds):
        return f"events {kinds[:300]}"
    ids = {event.get("item_id") or event["item"]["id"] for event in events}
    if ids != {item["id"]}:
        return f"ids {ids} where the response has {item['id']}"
    if events[-1]["item"] != item:
        return f"it ends as {events[-1]['item']} where the response has {item}"
    deltas = "".join(event["delta"] for event in events if event["type"].endswith(".delta"))
    (done,) = (e for e in events if e["type"].endswith(("_text.done", "arguments.done")))
    said = done["arguments"] if item["type"] == "function_call" else done["text"]
    kept = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    return None if deltas == said == kept else f"deltas {deltas!r}, done {said!r}, item {kept!r}"


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def output_text(answer: Event) -> str:
    """Return the text of all messages."""
    messages = (item for item in answer["output"] if item["type"] == "message")
    return "".join(part["text"] for item in messages for part in item["content"])


def status(answer: Event, expected: str) -> str | None:
    """The answer has this status."""
    return None if answer["status"] == expected else f"status {answer['status']}"


def incomplete(answer: Event, reason: str) -> str | None:
    """The answer is incomplete for this reason."""
    details = answer["incomplete_details"] or {}
    is_so = answer["status"] == "incomplete" and details.get("reason") == reason
    return None if is_so else f"status {answer['status']}, details {details}"


def items(answer: Event, kinds: list[str]) -> str | None:
    """The output has items of these types, in this order."""
    found = [item["type"] for item in answer["output"]]
    return None if found == kinds else f"items {found}, not {kinds}"


def usage_adds_up(answer: Event, _: Any) -> str | None:
    """``total_tokens`` is the sum of the other two, none of which is 0."""
    usage = answer["usage"]
    parts = usage["input_tokens"], usage["output_tokens"]
    return None if min(parts) > 0 and sum(parts) == usage["total_tokens"] else f"usage {usage}"


def output_tokens(answer: Event, number: int) -> str | None:
    """This many tokens were generated."""
    got = answer["usage"]["output_tokens"]
    return None if got == number else f"{got} output tokens, not {number}"


def echoes(answer: Event, fields: dict[str, Any]) -> str | None:
    """The answer gives these fields back."""
    found = {name: answer.get(name) for name in fields}
    return None if found == fields else f"{found}, not {fields}"


def text(answer: Event, expected: str) -> str | None:
    """The messages say this."""
    got = output_text(answer)
    return None if got == expected else f"{got!r}, not {expected!r}"


def more_input_tokens_than(answer: Event, other: Event) -> str | None:
    """The prompt is longer than that of an earlier answer, because it holds it."""
    before, got = (each["usage"]["input_tokens"] for each in (other, answer))
    return None if got > before else f"{got} input tokens after {before} before"


def is_the_same_as(answer: Event, other: Event) -> str | None:
    """The answer is an earlier one."""
    return None if answer == other else "another answer than before"


def json_text(answer: Event, schema: Event) -> str | None:
    """The text is JSON that fits the schema."""
    try:
        jsonschema.validate(json.loads(output_text(answer)), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{output_text(answer)!r}: {str(error).splitlines()[0]}"
    return None


def calls(answer: Event, schemas: dict[str, Event]) -> str | None:
    """Only these functions are called, at least one of them, with arguments that fit."""
    found = [item for item in answer["output"] if item["type"] == "function_call"]
    if not found:
        return "no function_call"
    for call in found:
        if call["name"] not in schemas or call["status"] != "completed":
            return f"call {call}"
        try:
            jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"arguments: {str(error).splitlines()[0]}"
    return None


OF_RESPONSES = {
    rule.__name__: rule
    for rule in (
        status, incomplete, items, usage_adds_up, output_tokens, echoes, text,
        more_input_tokens_than, is_the_same_as, json_text, calls,
    )
}  # fmt: skip

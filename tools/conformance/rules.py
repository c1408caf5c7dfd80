"""What a schema cannot say of an answer. Each rule returns what is wrong as text, or None."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

Event = dict[str, Any]


def texts(answer: Event) -> list[str]:
    """Return the text of each choice of an answer that is not streamed."""
    return [
        choice["text"] if "text" in choice else choice["message"]["content"] or ""
        for choice in answer["choices"]
    ]


def joined(events: list[Event]) -> Event:
    """Return a stream as the answer it would have been, as far as rules read it."""
    choices: dict[int, Event] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for piece in event["choices"]:
            choice = choices.setdefault(piece["index"], {"text": "", "finish_reason": None})
            delta = piece.get("delta", {})
            choice["text"] += piece.get("text") or delta.get("content") or ""
            choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def choices(answer: Event, number: int) -> str | None:
    """This many choices, numbered from 0, each with an ending."""
    if len(answer["choices"]) != number:
        return f"{len(answer['choices'])} choices, not {number}"
    if any(choice["finish_reason"] is None for choice in answer["choices"]):
        return "a choice without finish_reason"
    indices = [choice.get("index", i) for i, choice in enumerate(answer["choices"])]
    return None if indices == list(range(number)) else f"choices are numbered {indices}"


def finish_reason(answer: Event, reason: str) -> str | None:
    """Every choice ends for this reason."""
    got = {choice["finish_reason"] for choice in answer["choices"]}
    return None if got == {reason} else f"finish reasons {got}, not {reason}"


def usage_adds_up(answer: Event, _: Any) -> str | None:
    """``total_tokens`` is the sum of the other two, none of which is 0."""
    usage = answer["usage"]
    if usage is None:
        return "no usage"
    parts = usage["prompt_tokens"], usage["completion_tokens"]
    return None if min(parts) > 0 and sum(parts) == usage["total_tokens"] else f"usage {usage}"


def completion_tokens(answer: Event, number: int) -> str | None:
    """This many tokens were generated, all choices together."""
    got = answer["usage"]["completion_tokens"]
    return None if got == number else f"{got} completion tokens, not {number}"


def excludes(answer: Event, text: str) -> str | None:
    """No choice holds the text."""
    return f"{text!r} in the text" if any(text in t for t in texts(answer)) else None


def matches(answer: Event, pattern: str) -> str | None:
    """Each choice's text matches as a whole."""
    wrong = [text for text in texts(answer) if not re.fullmatch(pattern, text, re.DOTALL)]
    return f"{wrong[0]!r} does not match {pattern!r}" if wrong else None


def json_text(answer: Event, schema: Event) -> str | None:
    """Each choice's text is JSON that fits the schema."""
    for text in texts(answer):
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{text!r}: {str(error).splitlines()[0]}"
    return None


def tool_called(answer: Event, schema: Event) -> str | None:
    """Each choice calls a tool whose arguments fit the schema."""
    for choice in answer["choices"]:
        calls = choice["message"].get("tool_calls")
        if not calls or choice["finish_reason"] != "tool_calls":
            return f"no tool call: {choice}"
        try:
            jsonschema.validate(json.loads(calls[0]["function"]["arguments"]), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            return f"arguments: {str(error).splitlines()[0]}"
    return None


def one_ending(events: list[Event], _: Any) -> str | None:
    """Each choice of a stream has one event with a finish reason, its last."""
    ended: set[int] = set()
    for event in events:
        for piece in event["choices"]:
            if piece["index"] in ended:
                return f"choice {piece['index']} goes on after its end"
            if piece["finish_reason"] is not None:
                ended.add(piece["index"])
    seen = {piece["index"] for event in events for piece in event["choices"]}
    return None if seen == ended else f"choices {seen - ended} have no end"


def role_first(events: list[Event], _: Any) -> str | None:
    """The first event of each choice names the role, and no other does."""
    roles: dict[int, list[Any]] = {}
    for event in events:
        for piece in event["choices"]:
            roles.setdefault(piece["index"], []).append(piece["delta"].get("role"))
    wrong = [found for found in roles.values() if found[0] != "assistant" or any(found[1:])]
    return f"roles {wrong[0]}" if wrong else None


def usage_at_end(events: list[Event], _: Any) -> str | None:
    """One last event without choices carries the usage; no other does."""
    if events[-1]["choices"] or not events[-1].get("usage"):
        return f"the last event is {events[-1]}"
    return "usage before the end" if any(event.get("usage") for event in events[:-1]) else None


def no_usage(events: list[Event], _: Any) -> str | None:
    """No event carries usage, and none is without choices."""
    return "usage" if any(e.get("usage") or not e["choices"] for e in events) else None


#: Read events; all other rules read answers.
OF_EVENTS = {rule.__name__: rule for rule in (one_ending, role_first, usage_at_end, no_usage)}
OF_ANSWERS = {
    "choices": choices,
    "finish_reason": finish_reason,
    "usage_adds_up": usage_adds_up,
    "completion_tokens": completion_tokens,
    "excludes": excludes,
    "matches": matches,
    "json_text": json_text,
    "tool_called": tool_called,
}

"""What Anthropic's clients send, and what they make of the answers."""

from __future__ import annotations

import json

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = {"role": "user", "content": "Weather?"}
BODY = {"model": "quire-tiny", "max_tokens": 2000, "messages": [HELLO]}
THEIRS = {"anthropic-version": "2023-06-01"}


def events(response):
    """Return the events of a stream, whose names are their types."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for part in parts:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(found):
    """Put a stream together as Anthropic's own client does."""
    start, *middle, last, stop = found
    assert start["type"] == "message_start" and last["type"] == "message_delta"
    assert stop == {"type": "message_stop"}
    message, inputs, is_open = start["message"], {}, False
    assert message["content"] == [] and message["stop_reason"] is None
    for event in middle:
        index = event["index"]
        if event["type"] == "content_block_start":
            assert not is_open and index == len(message["content"])
            message["content"].append(event["content_block"])
            is_open = True
        elif event["type"] == "content_block_stop":
            assert is_open and index == len(message["content"]) - 1
            is_open = False
        else:
            assert is_open and event["type"] == "content_block_delta"
            delta, block = event["delta"], message["content"][index]
            kind = delta.pop("type").removesuffix("_delta")
            if kind == "input_json":
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
                block["input"] = inputs[index]
            elif kind == "signature":
                block["signature"] = delta["signature"]
            else:
                assert delta[kind], "no empty pieces"
                block[kind] += delta[kind]
    assert not is_open
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    message |= last["delta"]
    message["usage"] |= last["usage"]
    return message


def without_ids(message):
    """Return a message without what is drawn anew for each."""
    assert message["id"].startswith("msg_")
    content = []
    for block in message["content"]:
        assert block.get("id", "toolu_").startswith("toolu_")
        content.append({name: value for name, value in block.items() if name != "id"})
    return {**message, "id": "", "content": content}


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    return body["error"]["message"]

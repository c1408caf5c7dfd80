"""``GET /v1/responses/{id}/input_items``: the conversation that an answer follows, as items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quire.core.errors import RequestError
from quire.protocol.decimal_text import read_decimal
from quire.protocol.openai.chat_completion import Message
from quire.server.generation.response_store import StoredResponse

Item = dict[str, Any]
DEFAULT_LIMIT, MAX_LIMIT = 20, 100


def list_input_items(
    response_id: str, stored: StoredResponse, query: Mapping[str, str]
) -> dict[str, Any]:
    """Return a page of the items, earlier turns included, instructions not.

    Args:
        response_id: The answer's; the items' ids derive from it.
        stored: The answer.
        query: ``limit`` (1 to 100, by default 20), ``order`` (``desc``, or ``asc``), and ``after``,
            the id of the item before the page.

    Raises:
        RequestError: One of these is wrong.
    """
    items: list[Item] = []
    for message in stored.messages()[:-1]:
        items += _items(message)
    for index, item in enumerate(items):
        item["id"] = f"{_PREFIXES[item['type']]}_{response_id.removeprefix('resp_')}_{index}"
    order, asked = query.get("order", "desc"), query.get("limit", str(DEFAULT_LIMIT))
    limit = read_decimal(asked, MAX_LIMIT)
    if order not in ("asc", "desc"):
        raise RequestError(f"[order] must be asc or desc; got {order!r:.40}.", "order")
    if not limit:
        raise RequestError(f"[limit] must be 1 to {MAX_LIMIT}; got {asked!r:.40}.", "limit")
    if order == "desc":
        items.reverse()
    after, start = query.get("after"), 0
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise RequestError(f"[after] must be the id of an item; got {after!r:.80}.", "after")
        start = ids.index(after) + 1
    page = items[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(items),
    }


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


def _items(message: Message) -> Iterator[Item]:
    """Yield what a message was sent as."""
    text, status = message.content if isinstance(message.content, str) else "", "completed"
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": text,
            "status": status,
        }
        return
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        yield {"type": "reasoning", "summary": [], "content": content, "status": status}
    if isinstance(message.content, list) or text or not message.tool_calls:
        given = message.content if isinstance(message.content, list) else [{"text": text}]
        parts = [_part(part, message.role) for part in given]
        yield {"type": "message", "role": message.role, "content": parts, "status": status}
    for call in message.tool_calls or ():
        yield {
            "type": "function_call",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
            "status": status,
        }


def _part(part: Item, role: str) -> Item:
    """Return a part of a message as it was sent."""
    if "image_url" in part:
        return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
    if role == "assistant":
        return {"type": "output_text", "text": part["text"], "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": part["text"]}

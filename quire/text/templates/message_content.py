"""The content of a conversation's message: text, or parts that are texts and pictures.

A picture is only a place here: ``{"type": "image"}``, for which a template writes a placeholder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from quire.core.errors import RequestError
from quire.core.quoting import quoted

Part: TypeAlias = dict[str, Any]
#: Text, or parts when one of them is a picture.
Content: TypeAlias = str | list[Part]

_PICTURES = ("image_url", "input_image", "image")
#: The last two are those of OpenAI's responses.
_TEXTS = ("text", "input_text", "output_text")


def read_content(content: Any, where: str, takes_pictures: bool) -> Content | None:
    """Return a checked copy of a message's content; None where the content is None.

    Args:
        content: Text, parts in OpenAI's form, or None.
        where: The request's field, for messages.
        takes_pictures: Whether the model reads pictures.

    Raises:
        RequestError: The content holds something else.
    """
    if content is None:
        return None
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, Sequence):
        raise RequestError(f"[chat] {where} must be text or parts; got {quoted(content)}.", where)
    parts = [
        _read_part(part, f"{where}[{number}]", takes_pictures)
        for number, part in enumerate(content)
    ]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _read_part(part: Any, name: str, takes_pictures: bool) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if takes_pictures and kind in _PICTURES:
        return {"type": "image"}
    field = "refusal" if kind == "refusal" else "text"
    if kind not in (*_TEXTS, "refusal"):
        takes = "texts and pictures" if takes_pictures else "text only"
        kinds = "'text' or 'image_url'" if takes_pictures else "'text'"
        raise RequestError(
            f"[chat] {name}.type must be {kinds}; got {quoted(kind)}. This model takes {takes}.",
            f"{name}.type",
        )
    if not isinstance(part.get(field), str):
        raise RequestError(
            f"[chat] {name}.{field} must be text; got {quoted(part.get(field))}.", f"{name}.{field}"
        )
    return {"type": "text", "text": str(part[field])}


def with_text(content: Content | None, text: str) -> Content:
    """Return a content with a text at its end."""
    if content is None:
        return text
    if isinstance(content, str):
        return content + text
    *before, last = content
    if last["type"] == "text":
        return [*before, {"type": "text", "text": last["text"] + text}]
    return [*content, {"type": "text", "text": text}]


def as_parts(content: Content) -> list[Part]:
    """Return a content as parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def as_text(content: Content, picture_text: str) -> str:
    """Return a content as text, its parts joined by newlines, ``picture_text`` for pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else picture_text for part in content)

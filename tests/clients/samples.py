"""What several clients ask for: a question, a schema, a function."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

MODEL = "quire-tiny"
QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
#: One that quire-tiny calls by itself, asked for the weather in a city.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture_url(red: int = 200) -> str:
    """Return a data URL of a PNG of one colour, made without packages."""
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes([red, 30, 30]) * 8) * 8)
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", rows), _chunk(b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"

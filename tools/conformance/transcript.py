"""A golden transcript: a request, and what its answer must be like; never its exact text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "transcripts"
SCHEMAS = Path(__file__).parent / "schemas.json"


@dataclass(frozen=True)
class Transcript:
    """One exchange.

    Attributes:
        area, name: Where it stands and what it shows.
        method, path, headers: Of the request.
        body: JSON of the request; ``$MODEL`` in it is the served model's id.
        content: The request's body as text, instead of ``body``.
        padding_bytes: Of an unknown field that makes the body large.
        burst: How many are sent at the same time.
        without_key: Send no key, or a wrong one.
        status: Allowed statuses.
        answer_headers: Patterns of headers that must be there.
        schema: JSON Schema of the answer, or of every event of a stream.
        stream: The answer is server-sent events.
        rules: Names of :mod:`tools.conformance.rules` with their arguments.
        optional: A server without the feature may refuse it with one of these statuses.
    """

    area: str
    name: str
    path: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    content: str | None = None
    padding_bytes: int = 0
    burst: int = 1
    without_key: bool = False
    status: tuple[int, ...] = (200,)
    answer_headers: dict[str, str] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    stream: bool = False
    rules: dict[str, Any] = field(default_factory=dict)
    optional: tuple[int, ...] = ()


def load() -> list[Transcript]:
    """Return all transcripts; a file holds a list of one area."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        for entry in json.loads(path.read_text()):
            for name in ("status", "optional"):
                if isinstance(entry.get(name), int):
                    entry[name] = [entry[name]]
                if name in entry:
                    entry[name] = tuple(entry[name])
            found.append(Transcript(area=path.stem, **entry))
    return found

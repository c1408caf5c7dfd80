"""A golden transcript: a request, and what its answer must be like; never its exact text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "transcripts"
SCHEMAS = Path(__file__).parent / "schemas.json"
#: What an earlier answer fills in.
_PLACE = re.compile(r"\$[1-9](?:\.\w+)*")


@dataclass(frozen=True)
class Transcript:
    """One exchange.

    Attributes:
        area, name: Where it stands and what it shows.
        method, path, headers: Of the request.
        body: JSON of the request; ``$MODEL`` in it is the served model's id.
        before: Requests (``path``, ``method``, ``body``) that are sent first and must succeed. In
            what follows, ``$1.output.0.id`` is that place in the answer of the first of them.
        content: The request's body as text, instead of ``body``.
        padding_bytes: Of an unknown field that makes the body large.
        burst: How many are sent at the same time.
        without_key: Send no key, or a wrong one.
        status: Allowed statuses.
        answer_headers: Patterns of headers that must be there.
        schema: JSON Schema of the answer, or of every event of a stream.
        stream: The answer is server-sent events.
        rules: Names of :mod:`tools.conformance.rules` with their arguments.
        error: Pattern of the message when the answer is an error.
        optional: A server without the feature may refuse it with one of these statuses; where there
            are requests before, the first of them.
    """

    area: str
    name: str
    path: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    before: tuple[dict[str, Any], ...] = ()
    content: str | None = None
    padding_bytes: int = 0
    burst: int = 1
    without_key: bool = False
    status: tuple[int, ...] = (200,)
    answer_headers: dict[str, str] = field(default_factory=dict)
    schema: dict[str, Any] | None = None
    stream: bool = False
    rules: dict[str, Any] = field(default_factory=dict)
    error: str = ".*"
    optional: tuple[int, ...] = ()


def fill_in(value: Any, answers: list[Any]) -> Any:
    """Return ``value`` with every ``$N.path`` in its texts replaced from the Nth answer.

    A text that is nothing else becomes what stands there, whatever its type.

    Raises:
        LookupError: There is no such place.
    """
    if isinstance(value, dict):
        return {name: fill_in(part, answers) for name, part in value.items()}
    if isinstance(value, list):
        return [fill_in(part, answers) for part in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole is not None:
        return _look_up(whole[0], answers)
    return _PLACE.sub(lambda match: str(_look_up(match[0], answers)), value)


def _look_up(place: str, answers: list[Any]) -> Any:
    number, *names = place.removeprefix("$").split(".")
    found = answers[int(number) - 1]
    for name in names:
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


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
            entry["before"] = tuple(entry.get("before", ()))
            found.append(Transcript(area=path.stem, **entry))
    return found

"""What a result must reach: numbers with a direction, kept in ``claims.toml`` and in each file.

Owns how a claim is found by a result's name and judged; knows nothing of git or of documents.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLAIMS = Path(__file__).parent / "claims.toml"
#: Between the steps of a path. Keys of results hold dots and slashes.
ARROW = " > "


def claim(name: str, claims: Path = CLAIMS) -> dict[str, Any]:
    """Return what is stated of a result: ``measures``, and ``wanted`` where there is any."""
    found: dict[str, Any] = {}
    tables = tomllib.loads(claims.read_text())
    for key in sorted(tables, key=len):
        if f"{name}_".startswith(f"{key}_"):
            found |= tables[key]
    return found


def phrase(rule: dict[str, Any]) -> str:
    """Return a rule as text: ``at least 2 times results > random``."""
    direction = _direction(rule)
    factor = f" times {rule['times']}" if "times" in rule else ""
    return f"{direction.replace('_', ' ')} {rule[direction]:g}{factor}"


@dataclass(frozen=True)
class Miss:
    """A number that is not as wanted.

    Attributes:
        path: The number's place in the file, as in ``wanted``.
        rule: The direction and the bound, with the reason where there is one (``missed``).
        got: The numbers at the path that miss it; none where the path leads nowhere.
    """

    path: str
    rule: dict[str, Any]
    got: list[float]


def misses(document: dict[str, Any]) -> Iterator[Miss]:
    """Yield those of a result's ``wanted`` that it does not meet."""
    for path, rule in document.get("wanted", {}).items():
        direction = _direction(rule)
        bounds = [1.0] if "times" not in rule else numbers(document, rule["times"])
        found = numbers(document, path)
        if not found or len(bounds) != 1:
            yield Miss(path, rule, [])
            continue
        bound, sign = rule[direction] * bounds[0], 1 if direction == "at_least" else -1
        bad = [number for number in found if sign * number < sign * bound]
        if bad:
            yield Miss(path, rule, [number / bounds[0] for number in bad])


def numbers(document: Any, path: str) -> list[float]:
    """Return the numbers that a path leads to; a list that it ends at counts its entries.

    Raises:
        ValueError: What is there is not a number.
    """
    nodes = [document]
    for step in path.split(ARROW):
        nodes = [inner for node in nodes for inner in _follow(node, step)]
    found = [len(node) if isinstance(node, list) else node for node in nodes]
    for node in found:
        if not isinstance(node, int | float):
            raise ValueError(f"[results] {path} must lead to numbers; got {node!r}. Mend the path.")
    return [float(node) for node in found]


def _follow(node: Any, step: str) -> list[Any]:
    """Return what a step leads to from a node: nothing, a value, or several for ``*``."""
    if isinstance(node, dict) and step in node:
        return [node[step]]
    if step == "*":
        return list(node.values()) if isinstance(node, dict) else list(node)
    if isinstance(node, list):
        return [entry for item in node for entry in _follow(item, step)]
    key, _, value = step.partition("=")
    return [node] if isinstance(node, dict) and str(node.get(key)) == value else []


def _direction(rule: dict[str, Any]) -> str:
    """Return ``at_least`` or ``at_most``, whichever a rule has.

    Raises:
        ValueError: The rule has none or both, or another field, which is not read.
    """
    directions = [key for key in ("at_least", "at_most") if key in rule]
    if len(directions) != 1 or set(rule) - {*directions, "times", "missed"}:
        raise ValueError(
            f"[results] a rule must have at_least or at_most, and at most times and missed; "
            f"got {rule}. Mend it in benchmarks/claims.toml."
        )
    return directions[0]

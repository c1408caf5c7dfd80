"""The names in a PromQL expression: metrics, and the labels it matches and groups by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<range>\[[^\]]*\])
    |(?P<number>0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:ms|[smhdwy])?)
    |(?P<name>\$?[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<other>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},@])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "bool", "offset", "start", "end", "inf", "nan"}


@dataclass
class Names:
    """What an expression speaks of.

    Attributes:
        metrics: Each with the labels that are matched, and the texts that ``=`` wants.
        grouped: Labels that are grouped by.
    """

    metrics: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def tokens(expression: str) -> list[tuple[str, str]]:
    """Split an expression; refuse what is none of PromQL's tokens."""
    found, position = [], 0
    while position < len(expression):
        match = TOKEN.match(expression, position)
        assert match, f"no PromQL at {expression[position:]!r}"
        position = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def read_names(expression: str) -> Names:
    """Return the names in ``expression``; brackets must match."""
    names, words = Names(), tokens(expression)
    assert [t for _, t in words].count("(") == [t for _, t in words].count(")"), expression
    index = 0
    while index < len(words):
        kind, text = words[index]
        following = words[index + 1][1] if index + 1 < len(words) else ""
        if kind == "name" and text in GROUPING:
            if following == "(":
                index += 2
                while words[index][1] != ")":
                    if words[index][0] == "name":
                        names.grouped.add(words[index][1])
                    index += 1
        elif kind == "name" and text.lower() not in WORDS and following not in ("(", *GROUPING):
            matchers: dict[str, str | None] = {}
            if following == "{":
                index += 2
                while words[index][1] != "}":
                    label, operator, value = (words[index + i][1] for i in range(3))
                    assert operator in ("=", "!=", "=~", "!~"), expression
                    matchers[label] = value[1:-1] if operator == "=" else None
                    index += 3
                    index += words[index][1] == ","
            names.metrics.append((text, matchers))
        index += 1
    return names

"""General knowledge: tables in ``data/facts``, asked in several phrasings.

A file holds ``tables`` and, under ``asked``, the questions about them. A table maps a key to a
value, or to a list of which ``column`` picks one. ``ask`` and ``answer`` may use ``{k}`` and
``{v}``, and capitalised ``{K}`` and ``{V}``. Further fields of a question:

* ``swapped``: the table's values are the keys;
* ``unless_equal``: entries whose key is their value are left out;
* ``name``: of the fact, ``{k}`` if not given;
* ``short``: the answer without its sentence, ``{V}`` if not given; ``{bare}`` is the key without
  an article.

The order of the files and of what they hold decides what a seed draws.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tools.quire_tiny.data import load
from tools.quire_tiny.question import Fact

TOPICS = ("world", "nature", "language", "culture", "definitions")


@cache
def _topics() -> tuple[dict[str, Any], ...]:
    """Return the files of all topics."""
    return tuple(load(f"facts/{topic}") for topic in TOPICS)


@cache
def table(name: str, column: int | None = None) -> dict[str, str]:
    """Return a table of any topic, or one column of it."""
    (found,) = (topic["tables"][name] for topic in _topics() if name in topic["tables"])
    return {k: str(v if column is None else v[column]) for k, v in found.items()}


def _read_facts(asked: dict[str, Any]) -> list[Fact]:
    """Make one fact of each entry of a table."""
    pairs = table(asked["table"], asked.get("column")).items()
    made = []
    for k, v in ((v, k) for k, v in pairs) if asked.get("swapped") else pairs:
        if asked.get("unless_equal") and k == v:
            continue
        words = {"k": k, "v": v, "K": k[:1].upper() + k[1:], "V": v[:1].upper() + v[1:]}
        words["bare"] = k.removeprefix("the ")
        made.append(
            Fact(
                asked["kind"],
                asked.get("name", "{k}").format(**words),
                tuple(prompt.format(**words) for prompt in asked["ask"]),
                asked["answer"].format(**words),
                asked.get("short", "{V}").format(**words),
            )
        )
    return made


@cache
def phrasings(kind: str) -> list[str]:
    """Return the ways to ask for a kind of fact."""
    (found,) = (a["ask"] for topic in _topics() for a in topic["asked"] if a["kind"] == kind)
    return found


def all_facts() -> list[Fact]:
    """Return every fact of every topic, in a fixed order."""
    return [fact for topic in _topics() for asked in topic["asked"] for fact in _read_facts(asked)]

"""Names that other programs have for our settings, flags and commands, and what to write instead.

They are in ``other_programs.toml``, which is read when one of them is asked for.
``docs/coming_from.md`` is the same for readers; tests hold all to each other.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from quire.core.suggestions import did_you_mean


@functools.cache
def tables() -> dict[str, Any]:
    """Return the tables of the file, by name."""
    import tomllib  # few commands need it

    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@functools.cache
def same_flags() -> dict[str, tuple[str, ...]]:
    """Return the flags that mean the same as a setting of ours, by the setting."""
    return {name: tuple(flags.split()) for name, flags in tables()["same"].items()}


@functools.cache
def instead_of(kind: str, place: str) -> dict[str, str]:
    """Return what to write instead of words that other programs have and we do not.

    Args:
        kind: ``flags`` or ``commands``.
        place: Name of a command, or ``engine`` for all that load one, for flags; name of their
            group, for commands.
    """
    return {
        word: remedy
        for places, remedies in tables()[kind].items()
        if place in places.split()
        for remedy, words in remedies.items()
        for word in words.split()
    }


def meant_setting(name: str, known: dict[str, object]) -> str:
    """Return `` Did you mean X?`` for a keyword that is no setting, empty where nothing is near.

    Args:
        name: The name that the user wrote, with underscores.
        known: All settings by name.
    """
    for table in ("keywords", "same"):
        for ours, words in tables()[table].items():
            if name in [word.lstrip("-").replace("-", "_") for word in words.split()]:
                return f" Did you mean {ours}?"
    return did_you_mean(name, known)

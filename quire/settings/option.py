"""The declaration of a setting: a field with its default, its group and its line in the help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

#: What the help calls each group of settings, in its order.
GROUPS = {
    "model": "Model",
    "memory": "Memory",
    "scheduling": "Scheduling",
    "speculation": "Speculation",
    "adapters": "Adapters",
    "parallel": "Parallel",
    "models": "Several models",
    "server": "Server",
    "access": "Access",
    "observability": "Observability",
}


def option(
    default: Any, help: str, group: str | None = None, *, repr: bool = True, **extra: Any
) -> Any:
    """Declare a config field.

    Args:
        default: The setting's default.
        help: The setting's line in the help.
        group: The group that the help lists it in; None for a command without groups.
        repr: Whether the setting is shown where all are, such as in logs.
        **extra: Further attributes. ``common``: the short help of a command shows it. ``aliases``:
            further names of its flag. ``metavar``: the value's name in the help. ``env``: an
            environment variable that is read for it, too. ``spellings``: further
            values, with what they stand for. ``sized``: text with a unit, such as ``8GiB``, is
            taken from Python, too. ``is_json``: text of JSON, or what it stands for.
            ``unavailable``: values that other engines have, each with the rule that it breaks here.
    """
    return field(default=default, repr=repr, metadata={"help": help, "group": group, **extra})


def options_of(group: str) -> Callable[..., Any]:
    """Return :func:`option` for the settings of a group."""
    assert group in GROUPS, group
    return partial(option, group=group)

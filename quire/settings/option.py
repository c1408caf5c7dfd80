"""The declaration of a setting: a field with its default and its line in the help."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, **extra: Any) -> Any:
    """Declare a config field.

    Args:
        default: The setting's default.
        help: The setting's line in the help.
        **extra: Further attributes. ``common``: the short help of a command shows it. ``aliases``:
            further names of its flag. ``spellings``: further values, with what they stand for.
            ``sized``: text with a unit, such as ``8GiB``, is taken from Python, too. ``is_json``:
            text of JSON, or what it stands for. ``unavailable``: values that other engines have,
            each with the rule that it breaks here.
    """
    return field(default=default, metadata={"help": help, **extra})

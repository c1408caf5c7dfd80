"""Whether settings have the types of their fields, which Python callers can miss."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from quire.core.errors import ConfigError

#: The largest whole number: what is planned with it fits machines' integers.
LARGEST = 2**63 - 1


def check_types(part: Any) -> None:
    """Refuse values of another type.

    Args:
        part: The settings, a dataclass.

    Raises:
        ConfigError: A value has another type, or is a number that no setting needs; the message
            names its flag.
    """
    allowed_of = _allowed(part.__class__)
    for setting in fields(part):
        value = getattr(part, setting.name)
        allowed = allowed_of[setting.name]
        if isinstance(value, int) and abs(value) > LARGEST:
            flag = setting.name.replace("_", "-")
            raise ConfigError(f"[config] --{flag} must be below 2^63; got a larger number.")
        if isinstance(value, bool):
            fits = bool in allowed
        elif isinstance(setting.default, tuple):
            fits = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        else:
            fits = any(
                value == kind if isinstance(kind, str) else isinstance(value, kind)
                for kind in [*allowed, *((int,) if float in allowed else ())]
            )
        if not fits:
            names = [kind if isinstance(kind, str) else kind.__name__ for kind in allowed]
            if isinstance(setting.default, tuple):
                names = ["text", "a list of texts"]
            names = ["None" if name == "NoneType" else name for name in names]
            flag = setting.name.replace("_", "-")
            raise ConfigError(f"[config] --{flag} must be {' or '.join(names)}; got {value!r:.80}.")


@functools.cache  # to look at type hints takes longer than all else about a configuration
def _allowed(part: Any) -> dict[str, list[Any]]:
    """Return the types, and the words, that each setting of a class of settings may have."""
    return {
        name: [kind for kind in _alternatives(hint) if kind is not ...]
        for name, hint in get_type_hints(part).items()
    }


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types, and the words, that a type hint allows."""
    if get_origin(hint) is None:
        yield hint
    for argument in get_args(hint):
        if get_origin(argument) is not None or isinstance(argument, type):
            yield from _alternatives(argument)
        else:
            yield argument

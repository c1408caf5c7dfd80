"""Settings as flags: what a field and its type say of the flag's names, values and help.

The flags of ``quire`` (:mod:`quire.cli.flags.engine_flags`) and those of a script's own parser
(:mod:`quire.llm.script_flags`) are made of these.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from quire.settings.config import PARTS, EngineConfig
from quire.settings.known_settings import flag_name


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag.

    Attributes:
        name: The setting.
        kind: The type of its values: bool, int, float or str.
        default: The value without the flag; None and () for none.
        is_optional: Whether the setting may be None.
        is_list: Whether the flag may be given several times.
        choices: Values that it must have one of; empty for any.
        told: Attributes of the setting's declaration (:func:`quire.settings.option.option`).
    """

    name: str
    kind: type
    default: Any
    is_optional: bool
    is_list: bool
    choices: tuple[str, ...]
    told: Mapping[str, Any]

    @classmethod
    def read(cls, field: Field[Any], hint: Any) -> Flag:
        """Return the flag of a field, its type hint resolved."""
        is_optional = get_origin(hint) in (Union, types.UnionType)
        if is_optional:
            hint = next(kind for kind in get_args(hint) if kind is not type(None))
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        is_list = get_origin(hint) is tuple
        kind = str if choices or is_list else hint
        return cls(field.name, kind, field.default, is_optional, is_list, choices, field.metadata)

    @property
    def names(self) -> tuple[str, ...]:
        """The flag, long name first, and its aliases."""
        aliases = self.told.get("aliases", ())
        longer = (alias if alias.startswith("-") else f"--{alias}" for alias in aliases)
        return (flag_name(self.name), *longer)

    @property
    def group(self) -> str | None:
        """The group that the help lists it in."""
        group: str | None = self.told["group"]
        return group

    @property
    def values(self) -> tuple[str, ...]:
        """The choices with other spellings of them, and values that are refused with a reason."""
        return (*self.choices, *self.told.get("spellings", ()), *self.told.get("unavailable", ()))

    @property
    def help(self) -> str:
        """The line in the help: text, choices, default and environment variable."""
        text: str = self.told["help"]
        if self.is_list:
            text += "; repeatable"
        if self.choices:
            text += f" ({', '.join(self.choices)})"
        variable = f"env {self.told['env']}" if "env" in self.told else ""
        marks = "; ".join(filter(None, (self._default_text(), variable)))
        return f"{text} [{marks}]" if marks else text

    def _default_text(self) -> str:
        """Return the default as the help shows it; empty where the text says it itself."""
        if self.kind is bool:
            return "on" if self.default else "off"
        if self.default in (None, (), ""):
            return "" if "default" in self.told["help"] else "unset"
        if isinstance(self.default, float):
            return f"{self.default:g}"
        if isinstance(self.default, int) and self.default and self.default % 2**20 == 0:
            mebibytes = self.default // 2**20
            return f"{mebibytes}MiB" if mebibytes % 1024 else f"{mebibytes // 1024}GiB"
        return str(self.default)


def read_flags(*owners: type) -> dict[str, Flag]:
    """Return the flags of classes of settings, by name; parts that settings are in have none."""
    found = {}
    for owner in owners:
        hints = get_type_hints(owner)
        for field in fields(owner):
            if "help" in field.metadata:
                found[field.name] = Flag.read(field, hints[field.name])
    return found


@functools.cache
def setting_flags() -> dict[str, Flag]:
    """Return the flag of every setting of an engine, by name."""
    return read_flags(*PARTS.values(), EngineConfig)

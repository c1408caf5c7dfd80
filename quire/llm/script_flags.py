"""An engine's settings as flags of a script's own parser, as vLLM's examples take them.

The flags of ``quire`` itself are made in ``quire/cli/flags/engine_flags.py``, of the same fields.
"""

from __future__ import annotations

import sys
import types
from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from quire.core.counts import parse_count
from quire.settings.config import PARTS, SETTINGS, EngineConfig
from quire.settings.known_settings import engine_settings, flag_name


class FlexibleArgumentParser(ArgumentParser):
    """A parser that takes ``--max_model_len`` for ``--max-model-len``."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse arguments, by default those of the process; see :class:`ArgumentParser`."""
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._known(text) for text in given], namespace)

    def _known(self, argument: str) -> str:
        flag, equals, value = argument.partition("=")
        meant = flag.replace("_", "-")
        known = self._option_string_actions
        return meant + equals + value if flag not in known and meant in known else argument


def add_flags(parser: ArgumentParser) -> None:
    """Add a flag for each setting, and for those of other engines that are taken.

    Flags that the parser has stay the script's own.
    """
    flags = {
        field.name: _own(hints[field.name])
        for owner in (*PARTS.values(), EngineConfig)
        for hints in (get_type_hints(owner),)
        for field in fields(owner)
        if field.name in SETTINGS and "help" in field.metadata
    }
    others = engine_settings()
    flags |= {name: _value(bool if known.is_switch else str) for name, known in others.items()}
    for name, keywords in flags.items():
        setting = SETTINGS.get(name)
        default = None if setting is None else setting.default
        aliases = () if setting is None else setting.metadata.get("aliases", ())
        longer = [alias if alias.startswith("-") else f"--{alias}" for alias in aliases]
        taken = parser._option_string_actions
        spellings = [flag for flag in (flag_name(name), *longer) if flag not in taken]
        if spellings:
            text = setting.metadata["help"].replace("%", "%%") if setting else SUPPRESS
            parser.add_argument(*spellings, dest=name, default=default, help=text, **keywords)


def settings_of(arguments: Namespace) -> dict[str, Any]:
    """Return the settings among parsed arguments, as keywords of an engine."""
    known = {*SETTINGS, *engine_settings()}
    return {name: value for name, value in vars(arguments).items() if name in known}


def _own(hint: Any) -> dict[str, Any]:
    """Return how the flag of a setting of ours is read."""
    if get_origin(hint) is tuple:
        return {"nargs": "+"}
    is_optional = get_origin(hint) in (Union, types.UnionType)
    kind = next(k for k in get_args(hint) if k is not type(None)) if is_optional else hint
    if kind is int:
        return {"type": _count_or_auto if is_optional else _count}
    return _value(str if get_origin(kind) is Literal else kind)


def _value(kind: type) -> dict[str, Any]:
    return {"action": BooleanOptionalAction} if kind is bool else {"type": kind}


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError:
        rule = f"{text!r} is not a whole number such as 4096, 4k or 8GiB"
        raise ArgumentTypeError(rule) from None


def _count_or_auto(text: str) -> int | None:
    return None if text in ("auto", "-1") else _count(text)

"""An engine's settings as flags of a script's own parser, as vLLM's examples take them.

The flags of ``quire`` itself are made in ``quire/cli/flags/engine_flags.py``, of the same table.
"""

from __future__ import annotations

import sys
from argparse import (
    SUPPRESS,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
)
from collections.abc import Sequence
from typing import Any

from quire.core.counts import parse_count
from quire.settings.config import SETTINGS
from quire.settings.flags import Flag, setting_flags
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
    flags = {name: (flag.names, _read(flag), flag.help) for name, flag in setting_flags().items()}
    for name, known in engine_settings().items():
        kind = {"action": BooleanOptionalAction} if known.is_switch else {"type": str}
        flags[name] = ((flag_name(name),), kind, SUPPRESS)
    for name, (names, keywords, text) in flags.items():
        spellings = [flag for flag in names if flag not in parser._option_string_actions]
        if spellings:
            action = parser.add_argument(*spellings, dest=name, **{"default": None, **keywords})
            action.help = text.replace("%", "%%")  # not with a default of argparse's own


def settings_of(arguments: Namespace) -> dict[str, Any]:
    """Return the settings among parsed arguments, as keywords of an engine."""
    known = {*SETTINGS, *engine_settings()}
    return {name: value for name, value in vars(arguments).items() if name in known}


def _read(flag: Flag) -> dict[str, Any]:
    """Return how the flag of a setting is read."""
    if flag.is_list:
        return {"nargs": "+", "default": flag.default}
    if flag.kind is bool:
        return {"action": BooleanOptionalAction, "default": flag.default}
    counts = _count_or_auto if flag.is_optional else _count
    return {"type": counts if flag.kind is int else flag.kind, "default": flag.default}


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError:
        rule = f"{text!r} is not a whole number such as 4096, 4k or 8GiB"
        raise ArgumentTypeError(rule) from None


def _count_or_auto(text: str) -> int | None:
    return None if text in ("auto", "-1") else _count(text)

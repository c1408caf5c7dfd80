"""``EngineArgs``: an engine's settings as an object, in vLLM's shape."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import fields, make_dataclass
from os import PathLike
from typing import Any, Self, Unpack

from quire.llm.script_flags import add_flags, settings_of
from quire.settings.config import PARTS, SETTINGS, EngineConfig
from quire.settings.engine_keywords import read_keywords
from quire.settings.keyword_types import EngineKeywords
from quire.settings.other_programs import meant_setting
from quire.system.log import get_logger

log = get_logger(__name__)


_SETTINGS = make_dataclass("Settings", SETTINGS)


class EngineArgs:
    """Settings of an engine, checked at once; each one is an attribute.

    ``dataclasses.asdict`` and ``vars`` return them by name, as keywords of ``LLM``.

    Args:
        model: Folder, GGUF file, hub id, or ``quire-tiny`` (embedded).
        **keywords: The flags of ``quire serve`` with underscores. Settings of other engines that
            have nothing to do here are taken with a line in the log.

    Attributes:
        config: The settings in their parts.

    Raises:
        ConfigError: A keyword is unknown, or a value cannot be.
    """

    __slots__ = ("__dict__", "config")
    # What asdict() looks for.
    __dataclass_fields__ = {setting.name: setting for setting in fields(_SETTINGS)}

    config: EngineConfig

    def __init__(
        self, model: str | PathLike[str] = "quire-tiny", **keywords: Unpack[EngineKeywords]
    ) -> None:
        self.config, notices = read_keywords({"model": model, **keywords})
        for notice in notices:
            log.warning("%s", notice)
        # The part of the model has the name that its own setting has: parts win.
        for part in (self.config, *(getattr(self.config, name) for name in PARTS)):
            own = [setting.name for setting in fields(part) if setting.name in SETTINGS]
            self.__dict__.update((name, getattr(part, name)) for name in own)

    @staticmethod
    def add_cli_args(parser: ArgumentParser) -> ArgumentParser:
        """Add the settings as flags to a script's own parser, and return it."""
        add_flags(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        """Return the settings among a script's arguments."""
        return cls(**settings_of(args))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an engine has no setting {name!r}.{meant_setting(name, SETTINGS)}")

    def __repr__(self) -> str:
        return f"EngineArgs({self.config!r})"

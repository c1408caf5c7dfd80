"""``EngineArgs``: an engine's settings as an object, in vLLM's shape."""

from __future__ import annotations

from os import PathLike
from typing import Any, Unpack

from quire.core.config import PARTS, SETTINGS, EngineConfig
from quire.core.engine_keywords import EngineKeywords, read_keywords
from quire.core.log import get_logger

log = get_logger(__name__)


class EngineArgs:
    """Settings of an engine, checked at once; each one is an attribute.

    Args:
        model: Folder, GGUF file, hub id, or ``quire-tiny`` (embedded).
        **keywords: The flags of ``quire serve`` with underscores. Settings of other engines that
            have nothing to do here are taken with a line in the log.

    Attributes:
        config: The settings in their parts.

    Raises:
        ConfigError: A keyword is unknown, or a value cannot be.
    """

    config: EngineConfig

    def __init__(
        self, model: str | PathLike[str] = "quire-tiny", **keywords: Unpack[EngineKeywords]
    ) -> None:
        self.config, notices = read_keywords({"model": model, **keywords})
        for notice in notices:
            log.warning("%s", notice)

    def __getattr__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise AttributeError(f"an engine has no setting {name!r}")
        owners = (*(getattr(self.config, part) for part in PARTS), self.config)
        return next(getattr(owner, name) for owner in owners if hasattr(owner, name))

    def __repr__(self) -> str:
        return f"EngineArgs({self.config!r})"

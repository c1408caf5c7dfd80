"""Log lines for people, on stderr; nothing here writes to stdout or to a file."""

from __future__ import annotations

import logging
import sys

from quire.core import env

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever ``sys.stderr`` is at that moment, as ``logging.lastResort`` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))

    @property
    def stream(self) -> object:
        return sys.stderr


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, such as ``quire.runner.memory``.

    The first call gives the logger ``quire`` a handler, unless the application has set one, and
    the level of ``QUIRE_LOG_LEVEL`` (default ``info``).

    Raises:
        ConfigError: ``QUIRE_LOG_LEVEL`` is not a level.
    """
    root = logging.getLogger("quire")
    if not root.handlers and not logging.getLogger().handlers:
        root.addHandler(_StderrHandler())
        root.propagate = False
    if root.level == logging.NOTSET:
        root.setLevel(env.log_level().upper())
    return logging.getLogger(name)

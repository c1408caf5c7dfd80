"""Log lines on stderr, for people or as JSON; nothing here writes to stdout or to a file."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from quire.system import env

LogFormat: TypeAlias = Literal["human", "json"]


class HumanFormatter(logging.Formatter):
    """``12:00:00 INFO    message name=value``; values are the record's ``fields``, if any."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        pairs = "".join(f" {name}={_word(value)}" for name, value in _fields(record).items())
        return line + pairs


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ``time`` (UTC), ``level``, ``logger``, ``message``, ``fields``'
    values by name, and ``exception`` with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {
    "human": HumanFormatter,
    "json": JsonFormatter,
}


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever ``sys.stderr`` is at that moment, as ``logging.lastResort`` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(HumanFormatter())

    @property
    def stream(self) -> object:
        return sys.stderr


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, such as ``quire.runner.memory.memory_plan``.

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


@contextmanager
def few_lines(wanted: bool) -> Iterator[None]:
    """Log warnings alone meanwhile, unless ``QUIRE_LOG_LEVEL`` says what to log.

    Args:
        wanted: Whether to leave lines out; False logs all lines as ever.
    """
    root = logging.getLogger("quire")
    level = root.level
    if wanted and level == logging.INFO and env.get("QUIRE_LOG_LEVEL") is None:
        root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)


def set_format(log_format: LogFormat) -> None:
    """Choose the form of the lines; a handler that the application has set stays as it is."""
    for handler in logging.getLogger("quire").handlers:
        if isinstance(handler, _StderrHandler):
            handler.setFormatter(_FORMATTERS[log_format]())


def library_config(log_format: LogFormat, logger: str, level: str) -> dict[str, Any]:
    """Return the settings (``logging.config``) with which a library's lines look like ours."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"ours": {"()": _FORMATTERS[log_format]}},
        "handlers": {
            "ours": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "ours",
            }
        },
        "loggers": {logger: {"handlers": ["ours"], "level": level, "propagate": False}},
    }


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


def _word(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)

"""Where log lines go and how their level is chosen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
from quire.system.log import get_logger
log = get_logger("quire.test")
log.debug("low")
log.info("middle")
log.error("high")
"""


def run(code: str, level: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"QUIRE_LOG_LEVEL": level, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "level, shown",
    [("", ["middle", "high"]), ("debug", ["low", "middle", "high"]), ("error", ["high"])],
)
def test_lines_go_to_stderr_from_the_level_on(level: str, shown: list[str]) -> None:
    result = run(CODE, level)
    assert [line.split()[-1] for line in result.stderr.splitlines()] == shown
    assert result.stdout == ""


def test_an_application_that_set_up_logging_keeps_its_own() -> None:
    setup = "import logging, sys; logging.basicConfig(stream=sys.stdout, format='own %(message)s')"
    result = run(setup + CODE, "")
    assert result.stdout.splitlines() == ["own middle", "own high"]
    assert result.stderr == ""


def test_an_unknown_level_is_refused() -> None:
    result = run(CODE, "loud")
    assert "QUIRE_LOG_LEVEL must be one of debug, info, warning, error; got loud" in result.stderr


def test_json_lines_hold_fields_and_tracebacks() -> None:
    code = """
from quire.system.log import get_logger, set_format
log = get_logger("quire.test")
set_format("json")
log.info("a %s", "b", extra={"fields": {"count": 3, "name": "x y"}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
set_format("human")
log.info("again", extra={"fields": {"count": 3, "name": "x y", "all": ["p", "q"]}})
"""
    first, second, third = run(code, "").stderr.splitlines()
    line = json.loads(first)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "quire.test", "message": "a b", "count": 3, "name": "x y"
    }  # fmt: skip
    assert "ZeroDivisionError" in json.loads(second)["exception"]
    assert third.endswith('INFO    again count=3 name="x y" all=p,q')

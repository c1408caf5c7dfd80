"""Skips: loud where everything was installed, and never for what the repository itself holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.required import MAY_SKIP

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
REQUIRED = {"QUIRE_REQUIRE_ALL": "1"}
FILES = {
    "test_whole.py": "import pytest\npytest.importorskip('no_such_package')\n",
    "test_one.py": "import pytest\ndef test_it():\n    pytest.skip('no such program')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='not here')\ndef test_it(): ...\n",
    "test_known.py": "import pytest\ndef test_it(): pytest.skip('run scripts/test_clients')\n",
    "test_xfail.py": "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n",
}


#: A file and variables, of each run.
RUNS = [
    *((name, {}) for name in ("test_whole.py", "test_one.py", "test_mark.py")),
    *((name, REQUIRED) for name in FILES),
    ("test_known.py", REQUIRED | {"QUIRE_CLIENTS_URL": "http://127.0.0.1"}),
]
#: Each run is a fork of a process that has imported pytest and what all of its runs import.
EACH = """
import importlib, json, os, sys
import pytest
from _pytest.config import default_plugins
for name in default_plugins:
    importlib.import_module(f"_pytest.{name}")
codes = []
for number, (name, settings) in enumerate(json.loads(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        output = os.open(f"{number}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(settings)
        code = pytest.main(["-p", "tests.required", "-p", "no:cacheprovider"]
                           + ["--rootdir", ".", "-c", os.devnull, name])
        sys.stdout.flush()
        os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """Return a function that gives pytest's exit code and output for one of :data:`RUNS`."""
    folder = tmp_path_factory.mktemp("skips")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    others = {key for key in os.environ if key.startswith(("QUIRE_", "PYTEST_"))}
    kept = {key: value for key, value in os.environ.items() if key not in others}
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(RUNS)],
        cwd=folder,
        env=kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)

    def of(name: str, **settings: str) -> tuple[int, str]:
        number = RUNS.index((name, settings))
        return codes[number], (folder / f"{number}.log").read_text()

    return of


@pytest.mark.parametrize("name", ["test_whole.py", "test_one.py", "test_mark.py"])
def test_a_skip_fails_where_everything_is_installed(outcome, name):
    assert outcome(name)[0] in (0, 5)  # 5: a file without tests
    code, text = outcome(name, **REQUIRED)
    assert code not in (0, 5) and "skipped where everything is installed: " in text


def test_what_may_skip_does_and_not_where_the_clients_are(outcome):
    assert outcome("test_known.py", **REQUIRED)[0] == 0
    clients = {**REQUIRED, "QUIRE_CLIENTS_URL": "http://127.0.0.1"}
    assert outcome("test_known.py", **clients)[0] not in (0, 5)
    assert outcome("test_xfail.py", **REQUIRED)[0] == 0


def test_every_reason_that_may_skip_is_some_test_s():
    others = "".join(path.read_text() for path in TESTS if path.name != "required.py")
    assert [reason for reason in MAY_SKIP if reason not in others] == []


def test_nothing_skips_because_the_embedded_model_does_not_load():
    """It is in the repository: where it does not load, something is broken."""
    skip = re.compile(r"pytest\.skip\((.*)\)")
    found = [
        f"{path.relative_to(ROOT)}: {reason}"
        for path in TESTS
        for reason in skip.findall(path.read_text())
        if "quire-tiny" in reason
    ]
    assert found == []

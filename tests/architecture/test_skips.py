"""Skips: loud where everything was installed, and never for what the repository itself holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import MAY_SKIP

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILES = {
    "test_whole.py": "import pytest\npytest.importorskip('no_such_package')\n",
    "test_one.py": "import pytest\ndef test_it():\n    pytest.skip('no such program')\n",
    "test_mark.py": "import pytest\n@pytest.mark.skip(reason='not here')\ndef test_it(): ...\n",
    "test_known.py": "import pytest\ndef test_it(): pytest.skip('run scripts/test_clients')\n",
    "test_xfail.py": "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n",
}


def outcome(folder: Path, name: str, **settings: str) -> tuple[int, str]:
    """Return pytest's exit code and output for one of the files."""
    (folder / name).write_text(FILES[name])
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.required", "-p", "no:cacheprovider"]
        + ["--rootdir", folder, "-c", os.devnull, folder / name],
        cwd=ROOT,
        env=kept | settings | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["test_whole.py", "test_one.py", "test_mark.py"])
def test_a_skip_fails_where_everything_is_installed(tmp_path, name):
    assert outcome(tmp_path, name)[0] in (0, 5)  # 5: a file without tests
    code, text = outcome(tmp_path, name, QUIRE_REQUIRE_ALL="1")
    assert code not in (0, 5) and "skipped where everything is installed: " in text


def test_what_may_skip_does_and_not_where_the_clients_are(tmp_path):
    assert outcome(tmp_path, "test_known.py", QUIRE_REQUIRE_ALL="1")[0] == 0
    clients = {"QUIRE_REQUIRE_ALL": "1", "QUIRE_CLIENTS_URL": "http://127.0.0.1"}
    assert outcome(tmp_path, "test_known.py", **clients)[0] not in (0, 5)
    assert outcome(tmp_path, "test_xfail.py", QUIRE_REQUIRE_ALL="1")[0] == 0


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

"""Start servers of quire-tiny and of a tiny LLaVA; run ``tests/clients`` with another Python.

The clients' packages pin versions that the rest of this project does not have, so they live in an
environment of their own; see ``scripts/test_clients``.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ROOT, ServeProcess


def main() -> None:
    python, *arguments = sys.argv[1:]
    key = secrets.token_hex(8)
    command = [python, "-m", "pytest", "-c", "tests/clients/pytest.ini", "--rootdir", "."]
    command += ["--confcutdir", "tests/clients", "-p", "no:cacheprovider"]
    command += ["-p", "tests.required"]
    if not any(argument.startswith("tests/clients") for argument in arguments):
        command.append("tests/clients")
    limits = ["--memory", "2GiB", "--threads", "1"]
    with (
        tempfile.TemporaryDirectory() as cache,
        ServeProcess(limits, QUIRE_API_KEY=key, QUIRE_CACHE=cache) as server,
        ServeProcess(
            [*_make_llava(Path(cache) / "llava"), "--memory", "64MiB", "--threads", "1"],
            QUIRE_API_KEY=key,
        ) as pictures,
    ):
        environment = {"QUIRE_CLIENTS_URL": server.wait_ready(), "QUIRE_CLIENTS_KEY": key}
        environment["QUIRE_CLIENTS_PICTURES_URL"] = pictures.wait_ready()
        environment["QUIRE_REQUIRE_ALL"] = "1"
        # ``scripts/test --all`` has it set: the hub's client would reach no server at all.
        environment["HF_HUB_OFFLINE"] = "0"
        code = subprocess.run(
            [*command, *arguments], cwd=ROOT, env={**os.environ, **environment}
        ).returncode
        for each in (server, pictures):
            if each.end() != 0 or "Traceback" in each.stderr:
                sys.exit(each.stderr)
    sys.exit(code)


def _make_llava(folder: Path) -> list[str]:
    """Write a checkpoint that reads pictures; return how it is served."""
    random_checkpoint(folder, PRESETS["tiny-llava"])
    return [str(folder), "--served-model-name", "llava"]


if __name__ == "__main__":
    main()

"""Start a server of quire-tiny and run ``tests/clients`` against it with another Python.

The clients' packages pin versions that the rest of this project does not have, so they live in an
environment of their own; see ``scripts/test_clients``.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile

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
    ):
        environment = {"QUIRE_CLIENTS_URL": server.wait_ready(), "QUIRE_CLIENTS_KEY": key}
        environment["QUIRE_REQUIRE_ALL"] = "1"
        code = subprocess.run(
            [*command, *arguments], cwd=ROOT, env={**os.environ, **environment}
        ).returncode
        if server.end() != 0 or "Traceback" in server.stderr:
            sys.exit(server.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Which tests a worker gets together: a whole file, or all files that share a running server."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

from tests.servers import SERVERS

ROOT = Path(__file__).parents[1]


@functools.cache
def group_of(file: str) -> str:
    """Return the name of what a file comes to a worker with: its own unless it shares a server.

    Marks do not tell: the process that schedules collects nothing, and what a worker adds to the
    ids of its tests (``xdist_group``) pytest 9.2 does not pass on.
    """
    text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
    if not any(name in text for name in SERVERS):
        return file
    asked = {
        argument.arg
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in node.args.args
    }
    return next((group for name, group in SERVERS.items() if name in asked), file)


class FileScheduling(LoadScopeScheduling):
    """Hands out whole files, and files that share a server together."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.split("::", 1)[0])

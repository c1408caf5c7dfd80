"""Ranks and sandboxes of an engine in the tests' process, forked and not started.

Each is the same code as ever, in a process of its own: :class:`~quire.core.child_process` starts a
fresh interpreter, and a fork of one that has imported Quire (``tests/preforked.py``) has saved half
a second of imports. Tests of who is whose child, and of how one ends, want fresh ones.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.preforked import Preforked, fork_server
from tests.sizes import sized

#: Where ``ChildProcess`` tells its process the parent that it ends with: after the interpreter,
#: ``-c``, the code, the target's two names and two descriptors.
_PARENT = 7


class ForkedChild(Preforked):
    """What ``ChildProcess`` starts, with the process that forks as its parent."""

    def __init__(self, args: Sequence[str], **settings: Any) -> None:
        words = list(args)
        assert words[_PARENT] == str(os.getpid()), words
        words[_PARENT] = str(fork_server(os.environ).pid)
        super().__init__(words, **settings)


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork ranks and sandboxes; with ``--all`` start fresh interpreters."""
    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    forking = SimpleNamespace(Popen=ForkedChild, **names)
    monkeypatch.setattr("quire.core.child_process.subprocess", sized(forking, subprocess))
    yield

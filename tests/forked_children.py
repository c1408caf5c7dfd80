"""Engines, ranks and sandboxes of an engine in the tests' process, forked and not started.

Each is the same code as ever, in a process of its own: :class:`~quire.core.child_process` starts a
fresh interpreter, and a fork of one that has imported Quire (``tests/preforked.py``) has saved a
second of imports. With ``--all`` they are fresh interpreters.
"""

from __future__ import annotations

import sys

import pytest

from tests.sizes import sized


@pytest.fixture(autouse=True, scope="session")
def _forked_children() -> None:
    if sys.platform == "linux" and sized(True, False):
        from tests.preforked import fork_children

        fork_children()

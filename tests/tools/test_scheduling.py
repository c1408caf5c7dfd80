"""Files whose tests share a server come to one worker, others by themselves."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scheduling import ROOT, FileScheduling
from tests.servers import SERVERS


@pytest.fixture(scope="module")
def groups():
    scheduling = FileScheduling.__new__(FileScheduling)  # of no run: only its names are asked for
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    return {file: scheduling._split_scope(f"{file}::test_it[a@b::c]") for file in files}


def test_files_of_a_server_are_together(groups):
    sizes = Counter(groups.values())
    assert {group for group, size in sizes.items() if size > 1} == set(SERVERS.values())
    assert groups["tests/server/test_playground.py"] == "browser"
    assert groups["tests/robustness/test_repeated_faults.py"] == "crowded"


def test_others_are_by_themselves(groups):
    own = {file for file, group in groups.items() if group == file}
    assert len(own) == len(groups) - sum(group in SERVERS.values() for group in groups.values())
    assert "tests/tools/test_scheduling.py" in own

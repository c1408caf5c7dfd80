"""The channel of commands: whole messages, in order, to all; nothing used while it is idle."""

from __future__ import annotations

import pytest

from quire.distributed.segment_layout import SegmentSizes
from tests.distributed.worlds import Ranks, shared_memory
from tests.ports import free_ports

PROGRAMS = "tests.distributed.ring_programs"


def test_messages_through_shared_memory() -> None:
    sizes = SegmentSizes(ring=4096)
    with shared_memory(3, sizes=sizes) as memory, Ranks(f"{PROGRAMS}:follow", memory, 3) as ranks:
        digests = ranks.ends()
        assert len(digests[0]) == 64 and len(set(digests)) == 1, digests


def test_messages_through_connections() -> None:
    pytest.importorskip("torch")
    with Ranks(f"{PROGRAMS}:follow", free_ports(), 3) as ranks:
        digests = ranks.ends()
        assert len(digests[0]) == 64 and len(set(digests)) == 1, digests


def test_an_idle_worker_uses_no_core_and_is_woken() -> None:
    with shared_memory(2) as memory, Ranks(f"{PROGRAMS}:idle", memory, 2) as ranks:
        assert ranks.ends(120.0) == ["woken", "idle"]

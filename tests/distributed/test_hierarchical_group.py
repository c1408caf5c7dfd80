"""Ranks of several machines, of which some share memory."""

from __future__ import annotations

import pytest

from tests.distributed.worlds import Ranks
from tests.ports import free_ports
from tests.sizes import sized

PROGRAMS = "tests.distributed.mixed_programs"


@pytest.mark.parametrize(
    ("machines", "names"),
    [
        ("aabb", ["shared memory"] * 4),
        ("aabc", ["shared memory", "shared memory", "gloo", "gloo"]),
        ("abab", ["gloo"] * 4),
    ],
)
def test_groups_of_a_machine_share_memory(machines: str, names: list[str]) -> None:
    pytest.importorskip("torch")
    words = machines, sized(1, 2)
    with Ranks(f"{PROGRAMS}:compute", free_ports(), 4, *words) as ranks:
        assert ranks.ends() == [f"{name} gloo" for name in names]


def test_a_lost_rank_is_named_by_its_number_among_all() -> None:
    pytest.importorskip("torch")
    with Ranks(f"{PROGRAMS}:die", free_ports(), 4, "aabb") as ranks:
        assert ranks.ends() == ["[group] rank 3 is lost"] * 3 + [""]

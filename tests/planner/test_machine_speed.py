"""What ``quire doctor`` measured is there for ``quire top``; an unreadable file is not."""

from __future__ import annotations

import pytest

from quire.planner import machine_speed
from quire.planner.machine_speed import MachineSpeed

SPEED = MachineSpeed(read=2e10, float32=3e11, bfloat16=0.0, int8=1e12)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_speed_is_remembered(folder):
    assert machine_speed.remembered() is None
    machine_speed.remember(SPEED)
    assert machine_speed.remembered() == SPEED and SPEED.compute == 1e12


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"read": "x"}', "null", '{"read": 0}'])
def test_a_broken_file_is_none(folder, text):
    folder.mkdir()
    (folder / "machine_speed.json").write_text(text)
    assert machine_speed.remembered() is None


def test_a_folder_that_cannot_be_made_stops_nothing(folder):
    folder.write_text("a file")
    machine_speed.remember(SPEED)
    assert machine_speed.remembered() is None


def test_another_processors_speed_is_none(folder, monkeypatch):
    """A home folder may be that of several machines."""
    machine_speed.remember(SPEED)
    monkeypatch.setattr(machine_speed, "read_processor", lambda: "another")
    assert machine_speed.remembered() is None


def test_where_memory_stops_to_bind():
    assert SPEED.ridge(SPEED.int8) == 50
    # Two operations for each weight and row, and 16, 8 or 4 bits to read.
    assert SPEED.rows_at_ridge(8) == 25 and SPEED.rows_at_ridge(4) == 12.5
    # Weights of 16 bits are multiplied in float32 without an instruction for them.
    assert SPEED.rows_at_ridge(16) == 15

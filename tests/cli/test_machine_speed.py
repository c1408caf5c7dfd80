"""What ``quire doctor`` measured is there for ``quire top``; what nobody can read is not."""

from __future__ import annotations

import pytest

from quire.cli import machine_speed
from quire.cli.machine_speed import MachineSpeed

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


def test_doctor_measures_and_remembers(folder, quire, monkeypatch):
    from tests.cli.conftest import ENVIRONMENT

    monkeypatch.setitem(ENVIRONMENT, "QUIRE_CACHE", str(folder))
    printed = quire("doctor")
    assert printed.returncode == 0, printed.stderr
    speed = machine_speed.remembered()
    assert speed is not None and f"{speed.read / 1e9:.1f}" in printed.stdout

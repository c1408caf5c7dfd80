"""Numbers measured on a processor come back on it; an unreadable file counts as none."""

from __future__ import annotations

import json

import pytest

from quire.kernels.cpu.measured_once import FILE, remember, remembered
from quire.system.processor import read_processor

KEYS = ("a", "b")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(folder, text):
    folder.mkdir()
    (folder / FILE).write_text(text)


def test_numbers_are_kept_for_this_processor_next_to_others(folder):
    assert remembered("speed", KEYS) is None
    keep(folder, json.dumps({"another": {"speed": {"a": 1, "b": 2}}}))
    assert remembered("speed", KEYS) is None
    remember("speed", {"a": 1.5, "b": 2e11})
    remember("rows", {"c": 16})
    assert remembered("speed", KEYS) == (1.5, 2e11)
    assert remembered("rows", ("c",)) == (16,)
    assert set(json.loads((folder / FILE).read_text())) == {"another", read_processor()}
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "[]", "null", "1", "{}", '{"speed": "x"}', "\xff"])
def test_a_broken_file_is_none_and_mended(folder, text):
    folder.mkdir()
    (folder / FILE).write_bytes(text.encode("latin-1"))
    assert remembered("speed", KEYS) is None
    remember("speed", {"a": 1, "b": 2})
    assert remembered("speed", KEYS) == (1, 2)


@pytest.mark.parametrize(
    "value", [None, [], 1, {"a": 0, "b": 1}, {"a": 1}, {"a": "x", "b": 1}, {"a": 1e999, "b": 1}]
)
def test_a_broken_entry_is_none_and_mended(folder, value):
    for entry in (value, {"speed": value}):
        folder.mkdir(exist_ok=True)
        (folder / FILE).write_text(json.dumps({read_processor(): entry}))
        assert remembered("speed", KEYS) is None
        remember("speed", {"a": 1, "b": 2})
        assert remembered("speed", KEYS) == (1, 2)


def test_a_folder_that_cannot_be_made_stops_nothing(folder):
    folder.write_text("a file")
    remember("speed", {"a": 1, "b": 2})
    assert remembered("speed", KEYS) is None


def test_a_user_without_a_home_stops_nothing(monkeypatch):
    def fail(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("QUIRE_CACHE", raising=False)
    monkeypatch.setattr("pathlib.Path.expanduser", fail)
    remember("speed", {"a": 1, "b": 2})
    assert remembered("speed", KEYS) is None

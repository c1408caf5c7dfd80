"""A folder of blocks: what was written comes back, and everything else is a block not there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from quire.runner.blocks.tiers import disk_tier
from quire.runner.blocks.tiers.disk_tier import DiskTier
from quire.runner.blocks.tiers.sealed_block import HEAD_BYTES
from tests.robustness.conftest import wait_for

SIZE = 2000
MODEL, OTHER = bytes(range(32)), bytes(range(1, 33))


def key(number):
    return bytes([number % 256]) * 32


def block(number):
    return np.random.default_rng(number).integers(0, 256, SIZE, np.uint8)


def open_tier(folder, model=MODEL, max_bytes=2**20, **options):
    tier = DiskTier(folder, model, SIZE, max_bytes, **options)
    tier.look_up([key(0)])  # the folder is listed now
    return tier


def files(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def test_blocks_come_back_also_after_a_restart(tmp_path):
    tier = open_tier(tmp_path / "kv")
    assert tier.contains(key(1)) is False and tier.read(key(1)) is None
    for number in range(5):
        assert tier.write(key(number), block(number))
    for again in (tier, open_tier(tmp_path / "kv"), open_tier(tmp_path / "kv", is_writable=False)):
        assert again.look_up([key(number) for number in range(7)]) == 5
        for number in range(5):
            assert again.contains(key(number)) is (True if again.is_writable else None)
            assert np.array_equal(again.read(key(number)), block(number))
        held = 5 * (SIZE + HEAD_BYTES) if again.is_writable else 0
        assert again.samples()['kv_offload_held_bytes{tier="disk"}'] == held
    assert open_tier(tmp_path / "kv", OTHER).look_up([key(0)]) == 0


def test_no_other_user_reads_blocks(tmp_path):
    """They were 0644 in 0755: what prompts said could be told from them."""
    older = tmp_path / "kv" / MODEL.hex()[:32]
    older.mkdir(mode=0o755, parents=True)
    before = os.umask(0)
    try:
        tier = open_tier(tmp_path / "kv")
        assert tier.write(key(1), block(1))
    finally:
        os.umask(before)
    (file,) = files(tmp_path / "kv")
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o777 for path in (file.parent, older)} == {0o700}
    assert open_tier(tmp_path / "new" / "kv").write(key(1), block(1))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_the_least_recently_used_files_go_first_also_those_of_other_models(tmp_path):
    room = 4 * (SIZE + HEAD_BYTES)
    other = open_tier(tmp_path, OTHER, room)
    other.write(key(9), block(9))
    os.utime(files(tmp_path)[0], (1, 1))
    tier = open_tier(tmp_path, max_bytes=room)
    for number in range(3):
        tier.write(key(number), block(number))
    assert len(files(tmp_path)) == 4
    tier.read(key(0))
    tier.write(key(3), block(3))
    assert other.read(key(9)) is None and other.contains(key(9)) is False
    tier.write(key(4), block(4))
    assert [tier.contains(key(number)) for number in range(5)] == [True, False, True, True, True]
    tier.touch([key(0), key(8)])
    tier.write(key(5), block(5))
    assert [tier.contains(key(number)) for number in (0, 2, 3, 4, 5)] == [True, False, *[True] * 3]
    smaller = open_tier(tmp_path, max_bytes=room // 2)
    wait_for(lambda: len(files(tmp_path)) <= 2)
    assert len(files(tmp_path)) == 2 and not smaller.write(key(6), np.zeros(2 * room, np.uint8))


def test_a_folder_is_cleared_while_another_thread_writes(tmp_path):
    """It failed, and the engine ended with it."""
    tier = open_tier(tmp_path)
    for number in range(2):
        tier.write(key(number), block(number))
    writer = threading.Thread(target=tier.write, args=(key(2), block(2)))

    class Watched(str):
        """A path that is looked at in the moment in which another is added, if it can be."""

        def startswith(self, *args):
            if writer.ident is None:
                writer.start()
            writer.join(0.2)
            return super().startswith(*args)

    tier._sizes = OrderedDict((Watched(path), size) for path, size in tier._sizes.items())
    tier.clear()
    writer.join()
    assert not tier.look_up([key(0)]) and not tier.look_up([key(1)]) and tier.look_up([key(2)])


def test_a_folder_that_is_cleared_as_a_block_makes_room_takes_the_block(tmp_path):
    tier = open_tier(tmp_path, max_bytes=2 * (SIZE + HEAD_BYTES))
    for number in range(2):
        tier.write(key(number), block(number))

    class Clearing:
        """A lock that another thread has had just before: it has cleared the folder."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            tier._lock = self.lock
            tier.clear()
            return self.lock.__enter__()

        def __exit__(self, *error):
            return self.lock.__exit__(*error)

    tier._lock = Clearing(tier._lock)
    assert tier.write(key(2), block(2)) and tier.look_up([key(2)]) == 1


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "random":
        path.write_bytes(random.Random(4).randbytes(len(data)))
    elif how == "cut":
        path.write_bytes(data[:-1])
    elif how == "longer":
        path.write_bytes(data + b"x")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "missing":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "unreadable":
        path.unlink()
        path.symlink_to(path)
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        at = {"head": 3, "model": 20, "name": 50, "length": 75, "checksum": 85, "data": -7}[how]
        data[at] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    [
        *("random", "cut", "longer", "empty", "missing", "folder", "unreadable", "pipe"),
        *("head", "model", "name", "length", "checksum", "data"),
    ],
)
def test_a_damaged_file_is_a_block_that_is_not_there(tmp_path, how):
    tier = open_tier(tmp_path)
    tier.write(key(1), block(1))
    tier.write(key(2), block(2))
    (path,) = (path for path in files(tmp_path) if path.name.startswith("01"))
    damage(path, how)
    reader = open_tier(tmp_path, is_writable=False)
    assert reader.read(key(1)) is None
    assert tier.read(key(1)) is None and tier.contains(key(1)) is False
    assert np.array_equal(tier.read(key(2)), block(2))
    if how not in ("folder", "unreadable"):
        assert tier.write(key(1), block(1)) and np.array_equal(tier.read(key(1)), block(1))


def test_swapped_names_and_another_model_s_file_are_found_out(tmp_path):
    tier, other = open_tier(tmp_path), open_tier(tmp_path, OTHER)
    tier.write(key(1), block(1))
    tier.write(key(2), block(2))
    other.write(key(3), block(3))
    by_name = {path.name[:2]: path for path in files(tmp_path)}
    one, two = by_name["01"].read_bytes(), by_name["02"].read_bytes()
    by_name["01"].write_bytes(two)
    by_name["02"].write_bytes(one)
    own = by_name["01"].parents[1] / "03" / by_name["03"].name
    own.parent.mkdir()
    own.write_bytes(by_name["03"].read_bytes())
    again = open_tier(tmp_path)
    assert again.look_up([key(1), key(2), key(3)]) == 3, "they seem to be there"
    assert [again.read(key(number)) for number in (1, 2, 3)] == [None] * 3
    assert again.num_damaged == 3 and again.look_up([key(1)]) == 0


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "a" / "b").mkdir(parents=True)
    own = tmp_path / MODEL.hex()[:32] / "01"
    own.mkdir(parents=True)
    theirs = [tmp_path / "a" / "b" / name for name in ("picture.png", "main.kv", "film.part")]
    theirs += [own / "main.kv", own / "film.part", tmp_path / "a" / "b" / f"{key(1).hex()}.kv"]
    for path in theirs:
        path.write_bytes(b"mine, too" * SIZE)
        os.utime(path, (1, 1))
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("mine")
    (own / f"{key(1).hex()}.kv.{os.getpid()}.part").symlink_to(elsewhere)
    tier = open_tier(tmp_path, max_bytes=SIZE + HEAD_BYTES)
    for number in range(3):
        assert tier.write(key(number), block(number))
    tier.clear()
    assert files(tmp_path) == sorted([tmp_path / "notes.txt", elsewhere, *theirs])
    assert elsewhere.read_text() == "mine"


def test_a_folder_that_goes_away_or_cannot_be_written_costs_blocks_alone(tmp_path, monkeypatch):
    folder = tmp_path / "kv"
    tier = open_tier(folder)
    assert tier.write(key(1), block(1))
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()
    assert tier.read(key(1)) is None
    assert tier.write(key(2), block(2)), "it is made again"
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    tier = open_tier(blocked)
    assert not tier.write(key(1), block(1)) and tier.read(key(1)) is None
    full = open_tier(tmp_path / "full")

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_tier, "_write_all", no_space)
    assert not full.write(key(1), block(1)) and files(tmp_path / "full") == []
    monkeypatch.undo()
    assert not full.write(key(1), block(1)), "not at once again"
    monkeypatch.setattr(disk_tier, "REST_SECONDS", 0.0)
    full._resumes = 0.0
    assert full.write(key(1), block(1))


def test_a_reader_finds_what_the_writer_adds_and_changes_nothing(tmp_path):
    writer, reader = open_tier(tmp_path), open_tier(tmp_path, max_bytes=1, is_writable=False)
    writer.write(key(1), block(1))
    before = files(tmp_path)[0].stat().st_mtime_ns
    assert reader.contains(key(1)) is None and reader.look_up([key(1)]) == 1
    assert np.array_equal(reader.read(key(1)), block(1))
    reader.clear()
    assert files(tmp_path)[0].stat().st_mtime_ns == before


WRITE = """
import sys
import numpy as np
from pathlib import Path
from quire.runner.blocks.tiers.disk_tier import DiskTier
tier = DiskTier(Path(sys.argv[1]), bytes(range(32)), 2000, 2**20)
print("begins", flush=True)
while True:
    for number in range(250):
        tier._sizes.clear()
        data = np.random.default_rng(number).integers(0, 256, 2000, np.uint8)
        tier.write(bytes([number]) * 32, data)
"""


def test_what_a_killed_writer_leaves_is_whole_or_not_there(tmp_path):
    for round_number in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "begins\n"
        if round_number:
            wait_for(lambda: any(tmp_path.rglob("*.kv")))
            time.sleep(0.05 * round_number)
        child.kill()
        child.wait()
        child.stdout.close()
    for path in tmp_path.rglob("*.part"):
        os.utime(path, (1, 1))
    tier = open_tier(tmp_path)
    found = [number for number in range(250) if tier.contains(key(number))]
    assert found
    for number in found:
        assert np.array_equal(tier.read(key(number)), block(number))
    assert not list(tmp_path.rglob("*.part")) and tier.num_damaged == 0

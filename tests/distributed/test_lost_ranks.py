"""A rank that dies, hangs or makes another call: the others learn it soon, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.distributed.worlds import SILENCE_SECONDS, Ranks, shared_memory
from tests.ports import free_ports

PROGRAMS = "tests.distributed.lost_rank_programs"
#: Before silence alone would tell it.
SOON_SECONDS = SILENCE_SECONDS / 2
#: Of those that are lost by it: longer than others are while they start, and wait for a core.
SILENT_SECONDS = 12.0


def segments_in_dev_shm() -> set[str]:
    """Return what lies there under a name; others on the machine may have theirs."""
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_killed_in_a_collective_is_named(victim: int) -> None:
    before = segments_in_dev_shm()
    with shared_memory(3) as memory, Ranks(f"{PROGRAMS}:compute", memory, 3) as ranks:
        assert ranks.lines() == ["computing"] * 3
        ranks.processes[victim].kill()
        ends = ranks.ends(SOON_SECONDS)
    error = f"[group] rank {victim} is lost: its process has ended."
    assert ends == [error if rank != victim else "killed" for rank in range(3)]
    assert segments_in_dev_shm() <= before


def test_the_driver_s_watcher_ends_all_waits() -> None:
    with shared_memory(3) as memory, Ranks(f"{PROGRAMS}:wait_for_the_last", memory, 3) as ranks:
        assert ranks.lines() == ["waiting"] * 3
        time.sleep(0.3)  # they may be waiting by then
        memory.fail(1, "the watcher says so")
        memory.fail(2, "a second word changes nothing")
        error = "[group] rank 1 is lost: the watcher says so."
        for process in ranks.processes[:2]:
            assert process.communicate(timeout=SOON_SECONDS)[0].strip() == error


def test_a_rank_without_a_sign_of_life_is_lost_in_time() -> None:
    """It is named even by those that wait for one that waits for it."""
    program = f"{PROGRAMS}:wait_for_the_last"
    with shared_memory(3) as memory, Ranks(program, memory, 3, silence=SILENT_SECONDS) as ranks:
        assert ranks.lines() == ["waiting"] * 3
        error = "[group] rank 2 is lost: it gave no sign of life for too long."
        for process in ranks.processes[:2]:
            assert process.communicate(timeout=SOON_SECONDS)[0].strip() == error


def test_a_stopped_rank_is_lost_in_time() -> None:
    with (
        shared_memory(2) as memory,
        Ranks(f"{PROGRAMS}:compute", memory, 2, silence=SILENT_SECONDS) as ranks,
    ):
        assert ranks.lines() == ["computing"] * 2
        ranks.processes[1].send_signal(signal.SIGSTOP)
        told, _ = ranks.processes[0].communicate(timeout=SOON_SECONDS)
        assert told.strip() == "[group] rank 1 is lost: it gave no sign of life for too long."


@pytest.mark.parametrize("transport", ["memory", "torch"])
def test_workers_learn_that_the_driver_is_gone(transport: str) -> None:
    if transport == "torch":
        pytest.importorskip("torch")
    with shared_memory(3) as memory:
        place = memory if transport == "memory" else free_ports()
        with Ranks(f"{PROGRAMS}:be_told", place, 3) as ranks:
            assert ranks.lines() == ["waiting"] * 3
            ranks.processes[0].kill()
            for process in ranks.processes[1:]:
                told, _ = process.communicate(timeout=SOON_SECONDS)
                assert told.startswith("[group] rank 0 is lost")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_of_torch_s_is_named(victim: int) -> None:
    pytest.importorskip("torch")
    with Ranks(f"{PROGRAMS}:compute", free_ports(), 3) as ranks:
        assert ranks.lines() == ["computing"] * 3
        ranks.processes[victim].kill()
        ends = ranks.ends(SOON_SECONDS)
        for rank in {0, 1, 2} - {victim}:
            assert ends[rank].startswith(f"[group] rank {victim} is lost"), ends


def test_who_has_sent_half_a_message_to_a_lost_rank_of_torch_s_learns_it() -> None:
    """Gloo does not wake a thread that waits for that."""
    pytest.importorskip("torch")
    with Ranks(f"{PROGRAMS}:send_half", free_ports(), 2) as ranks:
        assert ranks.lines() == ["sending"] * 2
        time.sleep(0.5)  # it has by then
        ranks.processes[1].kill()
        told, _ = ranks.processes[0].communicate(timeout=SOON_SECONDS)
        assert told.startswith("[group] rank 1 is lost")


def test_a_rank_that_does_not_come_to_torch_s_world() -> None:
    pytest.importorskip("torch")
    with Ranks(f"{PROGRAMS}:compute", free_ports(), 2, silence=1.0, absent=[1]) as ranks:
        _, errors = ranks.processes[0].communicate(timeout=SOON_SECONDS)
        assert "RankDeadError: [distributed] all 2 ranks must connect" in errors


def test_ranks_that_make_different_calls_say_so() -> None:
    with shared_memory(2) as memory, Ranks(f"{PROGRAMS}:differ", memory, 2) as ranks:
        first, second = ranks.lines()
        assert first == (
            "[group] all ranks must make the same call; rank 1 made any of 0 bytes, "
            "rank 0 all_reduce of 16 bytes."
        )
        assert "rank 0 made all_reduce of 16 bytes" in second

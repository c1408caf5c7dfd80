"""Blocks on their way to a tier."""

from __future__ import annotations

import threading

from quire.runner.blocks.tiers.block_tiers import BlockTiers
from quire.runner.blocks.tiers.disk_tier import DiskTier
from quire.runner.blocks.tiers.ram_tier import RamTier
from quire.runner.blocks.tiers.slow_tiers import SlowTiers
from tests.robustness.conftest import wait_for
from tests.runner.blocks.tiers.test_disk_tier import MODEL, SIZE, block, files, key


class StandingStill(DiskTier):
    """A folder whose device takes what it is given when it is told to."""

    def __init__(self, *args):
        super().__init__(*args)
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def write(self, block_hash, data):
        self.is_asked.set()
        assert self.goes_on.wait(240)
        return super().write(block_hash, data)


def test_a_reset_forgets_what_waits_to_be_written_and_keeps_what_comes_later(tmp_path):
    """Blocks from before were found again."""
    disk = StandingStill(tmp_path, MODEL, SIZE, 2**20)
    tiers = BlockTiers(RamTier(0, SIZE), SlowTiers([disk], SIZE, 4, 16), SIZE)
    try:
        for number in range(3):
            tiers.save(key(number), block(number))
        assert disk.is_asked.wait(240)  # the first is being written
        tiers.reset()
        tiers.save(key(3), block(3))
        disk.goes_on.set()
        wait_for(lambda: tiers.slow.num_queued == 0)
        assert disk.look_up([key(3)]) == 1
        assert not any(disk.look_up([key(number)]) for number in range(3))
        assert len(files(tmp_path)) == 1
    finally:
        disk.goes_on.set()
        tiers.close()


def test_a_block_that_comes_again_after_a_reset_is_written_again(tmp_path):
    disk = StandingStill(tmp_path, MODEL, SIZE, 2**20)
    tiers = BlockTiers(RamTier(0, SIZE), SlowTiers([disk], SIZE, 4, 16), SIZE)
    try:
        tiers.save(key(0), block(0))
        assert disk.is_asked.wait(240)
        tiers.reset()
        tiers.save(key(0), block(0))
        disk.goes_on.set()
        wait_for(lambda: tiers.slow.num_queued == 0)
        assert disk.look_up([key(0)]) == 1
    finally:
        disk.goes_on.set()
        tiers.close()

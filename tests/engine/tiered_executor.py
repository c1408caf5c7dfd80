"""A simulated paged cache with tiers: one in memory, one whose blocks take their time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from quire.core.external_blocks import ExternalBlocks
from quire.core.step import NotComputed, SchedulerOutput, StepOutput
from quire.engine.gates.tier_gate import Tiers
from quire.kernels.batch.token_table import TokenTable
from quire.runner.step.step_retry import StepRetry
from tests.engine.paged_executor import PagedExecutor

#: What a block holds: of each layer its slots' values.
Content = list[dict[int, int]]


class SlowTiers:
    """Keeps everything; blocks come after a few calls, some not at all.

    Attributes:
        loses: Part of the blocks that turn out not to be there, 0 to 1.
        patience: Calls until a block, or an answer, has come.
        is_stuck: No block comes that is fetched from now on.
    """

    outlive = True
    move_seconds = 0.002

    def __init__(self, seed: int = 0) -> None:
        self.kept: dict[bytes, Content] = {}
        self.ready: dict[bytes, Content] = {}
        self.claimed: dict[bytes, Content] = {}
        self.coming: dict[bytes, int] = {}
        self.asked: dict[bytes, int] = {}
        self.random = random.Random(seed)
        self.patience = 2
        self.is_stuck = False
        self.loses = 0.0
        self.block_seconds = 0.0
        self.num_loaded = self.num_lost = 0

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        pass

    def find(self, block_hashes: Sequence[bytes]) -> ExternalBlocks | None:
        calls = self.asked.setdefault(block_hashes[0], self.random.randrange(self.patience + 1))
        if calls:
            self.asked[block_hashes[0]] -= 1
            return None
        del self.asked[block_hashes[0]]
        count = next((i for i, key in enumerate(block_hashes) if key not in self.kept), None)
        count = len(block_hashes) if count is None else count
        return ExternalBlocks([self.block_seconds] * count)

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        assert len(set(block_hashes)) == len(block_hashes)

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        for key in block_hashes:
            self.coming[key] = self.random.randrange(self.patience + 1)
            if self.is_stuck:
                self.coming[key] = 10**9

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        for count, key in enumerate(block_hashes):
            if key in self.ready:
                continue
            if key not in self.coming:
                return count or None
            self.coming[key] -= 1
            if self.coming[key] >= 0:
                return count
            del self.coming[key]
            if self.random.random() < self.loses:
                self.kept.pop(key, None)
                return count or None
            self.ready[key] = self.kept[key]
        return len(block_hashes)

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        for key in block_hashes:
            self.claimed[key] = self.ready.pop(key)

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        for key in block_hashes:
            self.coming.pop(key, None)
            self.ready.pop(key, None)

    def wait(self, seconds: float) -> None:
        assert self.asked or self.coming or self.ready

    def reset(self) -> None:
        self.kept.clear()

    def samples(self) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return "slow"


class TieredExecutor(PagedExecutor):
    """Moves blocks as the runner does; what cannot be loaded is lost."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.slow = SlowTiers()
        self.tiers: Tiers = self.slow

    def _compute(self, plan: SchedulerOutput) -> StepOutput:
        loads = [(block_id, self._get(key)) for block_id, key in plan.block_loads]
        for block_id, key in plan.block_stores:
            self.slow.kept[key] = self._content(block_id, key)
        for block_id, content in loads:
            self._fill(block_id, content)
        super()._compute(SchedulerOutput(block_copies=plan.block_copies))
        lost = [block_id for block_id, content in loads if content is None]
        table = TokenTable(max(len(self.held), 1), self.num_blocks)
        for number, (name, held) in enumerate(self.held.items()):
            table.rows[name] = number
            table.block_ids[number, : len(held.block_ids)] = held.block_ids
        if not plan.scheduled:
            return StepOutput(lost_block_ids=lost)
        compute = super()._compute
        parts = StepRetry(table, self.kv_cache_spec.block_size, lambda part: lambda: compute(part))
        result = parts.begin(plan, {}, lost)()
        if not result.ids(NotComputed.LOST):
            for block_id, key in plan.block_saves:
                self.slow.kept[key] = self._content(block_id, key)
        return result

    def _get(self, key: bytes) -> Content | None:
        found = self.slow.claimed.pop(key)
        if self.slow.random.random() < self.slow.loses / 2:
            self.slow.num_lost += 1
            self.slow.kept.pop(key, None)
            return None
        self.slow.num_loaded += 1
        return found

    def _slots(self, block_id: int) -> range:
        size = self.kv_cache_spec.block_size
        return range(block_id * size, (block_id + 1) * size)

    def _content(self, block_id: int, key: bytes) -> Content:
        content = [
            {i: layer[slot] for i, slot in enumerate(self._slots(block_id))}
            for layer in self.layers
        ]
        known = self.slow.kept.get(key)
        assert known is None or known == content, "equal hashes, other content"
        return content

    def _fill(self, block_id: int, content: Content | None) -> None:
        for number, layer in enumerate(self.layers):
            for i, slot in enumerate(self._slots(block_id)):
                layer[slot] = -9 if content is None else content[number][i]

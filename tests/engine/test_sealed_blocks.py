"""What the engine tells a KV canary: sealed blocks do not change while they can be found."""

from __future__ import annotations

import random

import pytest


class Watcher:
    """Keeps what sealed blocks held and compares it where they are reused."""

    def __init__(self, executor):
        self.executor = executor
        self.sealed: dict[int, list] = {}
        self.num_checks = 0

    def content(self, block_id: int) -> list:
        size = self.executor.kv_cache_spec.block_size
        return [
            [layer.get(block_id * size + offset) for offset in range(size)]
            for layer in self.executor.layers
        ]

    def before(self, plan) -> None:
        for block_id in plan.sealed_blocks:
            self.sealed.pop(block_id, None)
        for _, blocks in plan.reused_blocks:
            for block_id in blocks:
                if block_id in self.sealed:
                    assert self.content(block_id) == self.sealed[block_id]
                    self.num_checks += 1
                else:
                    assert block_id in plan.sealed_blocks, "reused, and never sealed"

    def after(self, plan) -> None:
        for block_id in plan.sealed_blocks:
            self.sealed[block_id] = self.content(block_id)
            assert None not in sum(self.sealed[block_id], [])


@pytest.mark.parametrize("seed", range(4))
def test_every_reused_block_was_sealed_and_has_not_changed(start, seed):
    rng = random.Random(seed)
    run = start(
        num_blocks=20, block_size=4, max_num_seqs=8, max_num_batched_tokens=20, kv_canary="log"
    )
    watcher = Watcher(run.executor)
    compute = run.executor._compute

    def watched(plan):
        watcher.before(plan)
        result = compute(plan)
        watcher.after(plan)
        return result

    run.executor._compute = watched
    stems = [[rng.randrange(1000) for _ in range(24)] for _ in range(3)]
    for number in range(60):
        prompt = rng.choice(stems)[: rng.randrange(1, 25)] + [rng.randrange(1000)]
        run.add(f"r{number}", prompt, max_tokens=rng.randrange(1, 30), n=rng.choice([1, 1, 3]),
                temperature=1.0)  # fmt: skip
        for _ in range(rng.randrange(4)):
            if run.engine.has_unfinished_requests():
                run.step()
        if number % 7 == 0:
            run.abort(f"r{rng.randrange(number + 1)}")
    run.finish()
    assert watcher.num_checks > 50 and run.engine.stats()["num_preemptions"] > 0


def test_nothing_is_told_without_a_canary(start):
    run = start(block_size=4)
    for name in "ab":
        run.add(name, [1] * 20, max_tokens=5)
    run.finish()
    assert run.engine.stats()["prefix_cache_hits"] > 0
    assert not any(plan.sealed_blocks or plan.reused_blocks for plan in run.plans)

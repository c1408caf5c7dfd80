"""What an observer of blocks learns: enough to know at any time which content can be found."""

from __future__ import annotations

import random

from quire.engine.cache.block_pool import BlockPool
from quire.engine.cache.kv_cache_manager import KVCacheManager
from tests.engine.requests import request, spec


class Diary:
    """Follows a pool by what it is told alone."""

    def __init__(self):
        self.found: dict[int, bytes] = {}
        self.hits: list[tuple[str, list[int]]] = []
        self.num_evicted = 0
        self.last: tuple[int, bytes] | None = None

    def given_out(self, block_id, content):
        assert block_id not in self.found, "its content must have been evicted"
        assert content is None or self.last == (block_id, content)

    def cached(self, block_id, block_hash):
        assert block_id not in self.found
        self.found[block_id] = block_hash

    def hit(self, request_id, block_ids):
        assert all(block_id in self.found for block_id in block_ids)
        self.hits.append((request_id, list(block_ids)))

    def evicted(self, block_id, block_hash):
        assert self.found.pop(block_id) == block_hash
        self.last = block_id, block_hash
        self.num_evicted += 1


def test_an_observer_knows_what_the_pool_knows():
    rng = random.Random(3)
    diaries = Diary(), Diary()
    kv = KVCacheManager(BlockPool(12, diaries), spec(block_size=4), True)
    live = []
    for number in range(400):
        if live and rng.random() < 0.5:
            kv.free(live.pop(rng.randrange(len(live))), forget=rng.random() < 0.2)
        else:
            new = request(f"r{number}", [rng.randrange(2)] * rng.randrange(1, 20))
            hits = kv.get_computed_blocks(new)
            missing = new.num_tokens - 4 * len(hits)
            if kv.allocate_slots(new, missing, hits) is not None:
                live.append(new)
                if hits:
                    assert diaries[0].hits[-1] == (new.request_id, hits)
        for diary in diaries:
            assert diary.found == {i: h for h, i in kv.pool.cached.items()}
        kv.check_integrity()
    assert len(diaries[0].hits) > 20 and diaries[0].num_evicted > 20
    assert diaries[0].hits == diaries[1].hits

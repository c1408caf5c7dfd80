"""A request keeps its prefix match until the cache, or the request, has changed."""

from __future__ import annotations

from quire.engine.cache.block_pool import BlockPool
from quire.engine.cache.kv_cache_manager import KVCacheManager
from tests.engine.requests import request, spec


def test_a_match_is_looked_up_anew_only_when_something_has_changed():
    kv = KVCacheManager(BlockPool(20), spec(4), True)
    first, tokens = request("a", list(range(12))), list(range(20))
    kv.allocate_slots(first, 8)
    asking = request("b", tokens)
    found = kv.get_computed_blocks(asking)
    assert found == kv.block_ids(first)
    assert kv.get_computed_blocks(asking) is found
    first.num_computed_tokens = 8
    kv.allocate_slots(first, 4)  # fills another block of the prefix
    longer = kv.get_computed_blocks(asking)
    assert longer == kv.block_ids(first) and len(longer) == 3
    kv.pool.forget(longer[1])
    assert kv.get_computed_blocks(asking) == longer[:1]
    assert kv.allocate_slots(asking, 16, longer[:1])
    asking.num_computed_tokens = 4
    assert kv.get_computed_blocks(asking) == []

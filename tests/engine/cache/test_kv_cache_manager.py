"""Block tables: exact cases, and a state machine that checks what every slot holds."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quire.core.engine_request import RangeKey
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.sampling_params import SamplingParams
from quire.engine.cache.block_pool import BlockPool
from quire.engine.cache.kv_cache_manager import Allocation, KVCacheManager
from quire.engine.cache.kv_report import SlotUse
from quire.engine.request import Request
from tests.engine.requests import request, spec
from tests.sizes import sized


def manager(
    num_blocks: int = 20, block_size: int = 16, caching: bool = True, **window: int | None
) -> KVCacheManager:
    return KVCacheManager(BlockPool(num_blocks), spec(block_size, **window), caching)


def compute(kv: KVCacheManager, one: Request, num_tokens: int | None = None) -> Allocation | None:
    """Do with a request what the scheduler does: hit, allocate, count as computed."""
    hits = kv.get_computed_blocks(one)
    if num_tokens is None:
        num_tokens = one.num_tokens - one.num_computed_tokens - len(hits) * kv.block_size
    allocation = kv.allocate_slots(one, num_tokens, hits)
    if allocation is not None:
        one.num_computed_tokens += len(hits) * kv.block_size + num_tokens
        kv.check_integrity()
    return allocation


def test_tables_as_text():
    """40 tokens take 3 blocks, 70 take 5; block i of a table holds its tokens 16 i on."""
    kv = manager(num_blocks=12)
    compute(kv, request("a", list(range(40))))
    compute(kv, request("b", list(range(100, 170))))
    assert kv.describe() == (
        "12 blocks of 16 slots: 8 used, 3 free, 1 null; 110 of 128 slots filled "
        "(85.9%), 18 wasted\n"
        "a (40 tokens): [1: 0-15] [2: 16-31] [3: 32-39]\n"
        "b (70 tokens): [4: 0-15] [5: 16-31] [6: 32-47] [7: 48-63] [8: 64-69]"
    )


def test_appending_fills_the_current_block_before_taking_another():
    kv, one = manager(), request("a", [0] * 15)
    assert compute(kv, one) == Allocation([1])
    for expected in ([], [2], *[[]] * 15, [3]):
        one.token_ids.append(0)
        assert compute(kv, one) == Allocation(expected)
    kv.free(one)
    assert kv.usage == 0.0


def test_identical_prompts_share_their_full_blocks():
    """The second adds no full block; freeing one leaves the other intact."""
    kv, tokens = manager(), list(range(50))
    first, second = request("a", tokens), request("b", tokens)
    compute(kv, first)
    allocation = compute(kv, second)
    assert allocation is not None
    assert allocation.new_block_ids == [1, 2, 3, 5]  # its own fourth block is the partial one
    assert "[1: 0-15 x2]" in kv.describe()
    kv.free(first)
    kv.check_integrity()
    assert kv.block_ids(second) == [1, 2, 3, 5]


def test_a_hit_leaves_the_last_token_to_be_computed():
    kv = manager()
    compute(kv, request("a", list(range(32))))
    assert kv.get_computed_blocks(request("b", list(range(32)))) == [1]
    assert kv.get_computed_blocks(request("c", list(range(33)))) == [1, 2]
    assert kv.get_computed_blocks(request("d", [9, *range(1, 33)])) == []


def test_extra_keys_separate_tenants_adapters_and_images():
    kv, tokens = manager(), list(range(40))
    compute(kv, request("a", tokens, extra_keys=("salt:x", "adapter:1")))
    for keys in ((), ("salt:y", "adapter:1"), ("salt:x", "adapter:2"), ("image:9",)):
        assert kv.get_computed_blocks(request("b", tokens, extra_keys=keys)) == []
    same = request("b", tokens, extra_keys=("salt:x", "adapter:1"))
    assert kv.get_computed_blocks(same) == [1, 2]


def test_prompt_logprobs_need_all_logits_and_so_hit_nothing():
    kv, tokens = manager(), list(range(40))
    compute(kv, request("a", tokens))
    asking = request("b", tokens, params=SamplingParams(prompt_logprobs=1))
    assert kv.get_computed_blocks(asking) == []
    asking.num_prompt_logprobs = 40  # all reported before a preemption
    assert kv.get_computed_blocks(asking) == [1, 2]


def test_a_refused_allocation_changes_nothing():
    kv = manager(num_blocks=6)
    cached = request("a", list(range(32)))
    compute(kv, cached)
    kv.free(cached)
    compute(kv, request("b", [7] * 40))
    before = copy.deepcopy(kv)
    # Two hits lie in the free queue: taking them leaves no block for the rest.
    one = request("c", [*range(32), 1, 2, 3])
    hits = kv.get_computed_blocks(one)
    assert len(hits) == 2
    assert kv.allocate_slots(one, 3, hits) is None
    assert kv.describe() == before.describe()
    assert kv.pool.free_block_ids() == before.pool.free_block_ids()
    assert (kv.pool.ref_cnt, kv.pool.cached) == (before.pool.ref_cnt, before.pool.cached)


def test_a_chunk_is_refused_when_the_reserve_does_not_fit():
    kv = manager(num_blocks=4)
    one = request("a", [1] * 64)
    assert kv.allocate_slots(one, 16, num_reserve_tokens=64) is None
    assert kv.allocate_slots(one, 16, num_reserve_tokens=48) == Allocation([1])


def test_fork_shares_and_the_writer_copies():
    """Every holder of the partial block but the last copies it once."""
    kv = manager()
    parent = request("p", list(range(33)))
    compute(kv, parent)
    children = [request(f"c{i}", list(range(33)), num_computed_tokens=33) for i in range(3)]
    for child in children:
        kv.fork(parent, child)
    kv.check_integrity()
    assert kv.pool.num_used == 3
    copies = []
    for one in [parent, *children]:
        one.token_ids.append(5)
        allocation = compute(kv, one)
        assert allocation is not None
        copies.append(allocation.copy)
    assert [c.destination for c in copies if c] == [4, 5, 6]
    assert all(c.source == 3 and c.index == 2 for c in copies if c)
    assert copies[3] is None
    assert [kv.block_ids(one)[2] for one in [parent, *children]] == [4, 5, 6, 3]


def test_copy_on_write_is_refused_without_a_free_block():
    kv = manager(num_blocks=3)
    parent = request("p", [1] * 17)
    compute(kv, parent)
    child = request("c", [1] * 17, num_computed_tokens=17)
    kv.fork(parent, child)
    child.token_ids.append(2)
    assert kv.allocate_slots(child, 1) is None
    kv.free(parent)
    assert kv.allocate_slots(child, 1) == Allocation([])


def test_the_end_of_a_chain_is_evicted_first():
    """What is left of a prefix can still be hit."""
    kv, tokens = manager(num_blocks=6), list(range(64))
    one = request("a", tokens)
    compute(kv, one)
    kv.free(one)
    compute(kv, request("b", [1] * 33))  # takes the untouched block and two cached ones
    assert kv.get_computed_blocks(request("c", [*tokens, 0])) == [1, 2]


def test_blocks_of_a_failed_request_are_forgotten():
    kv, tokens = manager(), list(range(40))
    one = request("a", tokens)
    compute(kv, one)
    kv.free(one, forget=True)
    assert kv.get_computed_blocks(request("b", tokens)) == []
    kv.check_integrity()


def test_a_chunked_prompt_takes_up_blocks_others_computed_meanwhile():
    kv, tokens = manager(), list(range(100))
    slow = request("a", tokens)
    compute(kv, slow, 16)
    compute(kv, request("b", tokens))
    assert kv.get_computed_blocks(slow) == [2, 3, 4, 5, 6]


def test_without_caching_nothing_hits():
    kv = manager(caching=False)
    compute(kv, request("a", [1] * 40))
    assert kv.get_computed_blocks(request("b", [1] * 40)) == []
    assert kv.pool.cached == {}


def test_utilization_of_a_mixed_load():
    """Under one block per sequence is wasted; whole contexts of 2,048 would waste four fifths."""
    kv, rng = manager(num_blocks=sized(9000, 20000)), random.Random(3)
    for i in range(300):
        compute(kv, request(f"r{i}", [i] * round(20 * 100 ** rng.random())))
    use = kv.slot_use()
    assert 0.975 < use.utilization < 0.99
    assert use.wasted <= 15 * 300
    assert 0.18 < SlotUse(300 * 2048, use.used).utilization <= 0.25


class CacheMachine(RuleBasedStateMachine):
    """Random work on a small cache whose slots are simulated.

    ``slots`` holds for each slot the tokens from position 0 to its own, which is what KV depends
    on. Before each step every computed position of every request must read exactly its own prefix,
    so a stale hit, a missing copy or two writers of one block show up whatever caused them.
    """

    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.kv = manager(num_blocks=14, block_size=4, window=self.window, step_tokens=22)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.live: dict[str, Request] = {}
        self.waiting: dict[str, Request] = {}
        self.num_made = 0

    def pick(self, data: st.DataObject, group: dict[str, Request]) -> Request:
        return group[data.draw(st.sampled_from(sorted(group)))]

    @rule(prefix=st.integers(0, 2), length=st.integers(1, 22), salted=st.booleans())
    def arrive(self, prefix: int, length: int, salted: bool) -> None:
        if len(self.waiting) > 5:
            return
        tokens = [prefix + (position > 9) * (length % 2) for position in range(length)]
        keys = ("salt",) if salted else ()
        one = request(f"r{self.num_made:04}", tokens, extra_keys=keys)
        self.num_made += 1
        self.waiting[one.request_id] = one

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        one = self.pick(data, self.waiting)
        if self.advance(data, one):
            self.live[one.request_id] = self.waiting.pop(one.request_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        one = self.pick(data, self.live)
        if one.num_computed_tokens == one.num_tokens:
            one.token_ids.append(data.draw(st.integers(0, 1)))
        self.advance(data, one)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data, self.live)
        if parent.num_computed_tokens < parent.num_tokens or len(self.live) > 8:
            return
        child = request(
            f"r{self.num_made:04}",
            parent.token_ids,
            num_computed_tokens=parent.num_tokens,
            extra_keys=parent.source.extra_keys,
        )
        self.num_made += 1
        self.kv.fork(parent, child)
        self.live[child.request_id] = child

    @precondition(lambda self: self.live)
    @rule(data=st.data(), fails=st.booleans())
    def finish(self, data: st.DataObject, fails: bool) -> None:
        one = self.pick(data, self.live)
        del self.live[one.request_id]
        self.kv.free(one, forget=fails)
        if not self.live:
            assert self.kv.pool.num_used == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        one = self.pick(data, self.live)
        self.kv.free(one)
        one.num_computed_tokens = 0
        self.waiting[one.request_id] = self.live.pop(one.request_id)

    def advance(self, data: st.DataObject, one: Request) -> bool:
        kv, size = self.kv, self.kv.block_size
        hits = kv.get_computed_blocks(one)
        assert len(hits) * size < one.num_tokens
        computed = one.num_computed_tokens + len(hits) * size
        count = data.draw(st.integers(1, one.num_tokens - computed))
        before = self.state()
        allocation = kv.allocate_slots(one, count, hits, data.draw(st.sampled_from([0, 30])))
        if allocation is None:
            assert self.state() == before
            return False
        if allocation.copy is not None:
            for offset in range(size):
                source = self.slots.get(allocation.copy.source * size + offset)
                self.slots[allocation.copy.destination * size + offset] = source or ()
        self.check(one, computed)
        table = kv.block_ids(one)
        for position in range(computed, computed + count):
            block_id = table[position // size]
            assert kv.pool.ref_cnt[block_id] == 1, "write into a shared block"
            self.slots[block_id * size + position % size] = self.content(one, position)
        one.num_computed_tokens = computed + count
        return True

    def content(self, one: Request, position: int) -> tuple[int, ...]:
        return (len(one.source.extra_keys), *one.token_ids[: position + 1])

    def state(self) -> tuple[object, ...]:
        pool = self.kv.pool
        return self.kv.describe(), list(pool.ref_cnt), pool.free_block_ids(), dict(pool.cached)

    def check(self, one: Request, num_computed: int) -> None:
        """Check what the token after the computed ones sees."""
        table, size = self.kv.block_ids(one), self.kv.block_size
        first = 0 if self.window is None else max(num_computed - self.window + 1, 0)
        for position in range(first, num_computed):
            slot = table[position // size] * size + position % size
            assert self.slots.get(slot) == self.content(one, position)

    @invariant()
    def every_request_reads_its_own_prefix(self) -> None:
        self.kv.check_integrity()
        for one in self.live.values():
            self.check(one, one.num_computed_tokens)
            assert self.kv.num_blocks(one) <= self.kv.spec.num_blocks(one.num_tokens)


class WindowMachine(CacheMachine):
    window = 6


# 20 x 70 = 1,400 steps, and 11,200 in full; `test_the_state_machine_notices_mistakes` in either.
BOUNDS = settings(
    max_examples=sized(20, 160),
    stateful_step_count=70,
    deadline=None,
    derandomize=True,
    database=None,
)


@pytest.mark.parametrize("machine", [CacheMachine, WindowMachine])
def test_random_work_keeps_every_slot_right(machine):
    run_state_machine_as_test(machine, settings=BOUNDS)


def test_blocks_that_the_window_has_left_are_given_back_and_found_again():
    kv = manager(num_blocks=10, block_size=4, window=6, step_tokens=8)
    tokens = list(range(40))
    one = request("one", tokens)
    for _ in range(5):
        compute(kv, one, 8)
        assert kv.num_blocks(one) <= kv.spec.num_blocks(40) == 5
    # The token after them sees positions from 35 on, those of the last step from 27 on.
    assert kv.block_ids(one)[:6] == [0] * 6 and 0 not in kv.block_ids(one)[6:]
    # The first blocks were given out again; what the window covers is there.
    longer = request("two", [*tokens, 1, 2])
    hits = kv.get_computed_blocks(longer)
    assert hits == [0] * 8 + kv.block_ids(one)[8:]
    assert kv.get_computed_blocks(request("three", tokens[:5])) == []
    compute(kv, longer)
    kv.free(one)
    kv.free(longer)
    assert kv.pool.num_used == 0
    kv.check_integrity()


@pytest.mark.parametrize("mistake", ["no copy", "hash without parent and keys", "too early"])
def test_the_state_machine_notices_mistakes(monkeypatch, mistake):
    """A check that cannot fail is none: with a known bug the machine must stop."""
    machine = WindowMachine if mistake == "too early" else CacheMachine
    if mistake == "too early":
        monkeypatch.setattr(KVCacheSpec, "first_seen_block", lambda own, p: max(p - 4, 0) // 4)
    elif mistake == "no copy":
        monkeypatch.setattr(KVCacheManager, "_copy_on_write", lambda *_: None)
    else:
        monkeypatch.setattr(
            "quire.engine.cache.kv_cache_manager.hash_block", lambda _, t, *k: bytes(t)
        )
    bounds = settings(BOUNDS, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=bounds)


def test_keys_of_a_range_separate_the_blocks_that_overlap_it_and_those_after():
    kv = manager(num_blocks=40)
    size = kv.block_size
    tokens = [1] * (5 * size)
    compute(kv, plain := request("plain", tokens))

    def hits(*parts: RangeKey, extra_keys: tuple[str, ...] = ()) -> int:
        asking = request("asking", [*tokens, 2], extra_keys, parts)
        return len(kv.get_computed_blocks(asking))

    assert hits() == 5
    assert hits(RangeKey(2 * size, 2 * size + 1, "image")) == 2
    assert hits(RangeKey(2 * size - 1, 3 * size, "image")) == 1
    assert hits(RangeKey(0, 1, "image")) == 0
    assert hits(extra_keys=("salt",)) == 0
    kv.free(plain)
    keyed = request("keyed", tokens, range_keys=(RangeKey(size + 1, 2 * size + 1, "image"),))
    kv.allocate_slots(keyed, 5 * size - size, kv.get_computed_blocks(keyed)[:1])
    assert hits(RangeKey(size + 1, 2 * size + 1, "image")) == 5
    assert hits(RangeKey(size + 1, 2 * size + 1, "other")) == 1
    assert hits(RangeKey(size, 2 * size, "image")) == 1, "the same tokens, another place"
    assert hits(RangeKey(size + 1, 2 * size, "image")) == 1, "the same place, cut short"
    assert hits() == 5


def test_what_is_not_known_is_never_hashed():
    """Blocks reserved for, or filled with, proposed tokens had no tokens to be found by."""
    kv = manager(num_blocks=40)
    size = kv.block_size
    growing = request("r", list(range(2 * size - 1)))
    allocation = kv.allocate_slots(growing, 2 * size - 1, num_lookahead_tokens=2 * size)
    assert allocation is not None and len(allocation.new_block_ids) == 4
    assert len(kv.pool.cached) == 1
    kv.check_integrity()
    growing.num_computed_tokens = 2 * size - 1
    growing.token_ids.append(7)
    # The known token and proposed ones are computed; one of them is accepted, the rest taken back.
    allocation = kv.allocate_slots(growing, 1 + size)
    assert allocation is not None and not allocation.new_block_ids
    assert len(kv.pool.cached) == 2
    growing.token_ids += [8, 9]
    growing.num_computed_tokens += 2
    held = kv.block_ids(growing)
    allocation = kv.allocate_slots(growing, 1, num_lookahead_tokens=1)
    assert allocation is not None and not allocation.new_block_ids
    assert kv.block_ids(growing) == held and len(kv.pool.cached) == 2
    same = request("same", growing.token_ids)
    assert kv.get_computed_blocks(same) == held[:2]
    kv.check_integrity()
    kv.free(growing)
    assert kv.pool.num_used == 0


def test_lookahead_that_does_not_fit_is_refused_and_changes_nothing():
    kv = manager(num_blocks=4)
    asking = request("r", [1] * kv.block_size)
    assert kv.allocate_slots(asking, kv.block_size, num_lookahead_tokens=3 * kv.block_size) is None
    assert kv.pool.num_used == 0 and not kv.pool.cached
    assert kv.allocate_slots(asking, kv.block_size, num_lookahead_tokens=2 * kv.block_size)

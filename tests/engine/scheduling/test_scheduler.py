"""Which requests run in which step: limits, order, chunks, prefix hits, preemption."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.step import SchedulerOutput
from quire.engine.scheduling.prefill_policy import PrefillPolicy
from quire.planner.memory_budget import MemoryDemand, divide_memory
from quire.settings.config import SchedulerOptions


def tokens_of(plan: Any) -> dict[str, int]:
    return {row.request_id: row.num_scheduled_tokens for row in plan.scheduled}


def prefilled(run: Any) -> int:
    """Token positions computed for prompts."""
    return run.engine.stats()["num_computed_tokens"] - sum(
        max(len(tokens) - 1, 0) for tokens in run.tokens.values()
    )


def test_a_plan_counts_its_tokens_as_rows_are_added(start):
    """They were summed once per row: planning 256 rows took 66,000 additions."""
    run = start(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=48)
    for i in range(12):
        run.add(f"r{i}", [1] * (1 + 9 * i), max_tokens=4)
    run.finish()
    assert {field.name for field in fields(SchedulerOutput)} >= {"num_scheduled_tokens"}
    assert [plan.num_scheduled_tokens for plan in run.plans] == [
        sum(tokens_of(plan).values()) for plan in run.plans
    ]


# Admission


def test_admission_waits_for_a_slot(start):
    """The 257th of 256 waits."""
    run = start(num_blocks=600, max_num_seqs=256, mixed_prefill_tokens=0)
    for i in range(257):
        run.add(f"r{i}", [1], max_tokens=2)
    run.step()
    assert len(run.plans[0].scheduled) == 256
    assert run.engine.stats()["num_requests_waiting"] == 1
    run.finish()


def test_admission_waits_for_blocks(start):
    """The head of the queue waits until its whole prompt fits, and no request passes it."""
    run = start(num_blocks=1 + 6, max_num_batched_tokens=32)
    run.add("first", [1] * 60, max_tokens=10)
    run.add("large", [2] * 60, max_tokens=2)
    run.add("small", [3], max_tokens=2)
    for _ in range(11):
        run.step()
        assert set(tokens_of(run.plans[-1])) == {"first"}
    run.finish()
    assert run.engine.stats()["num_preemptions"] == 0


def test_admission_needs_a_queue(start):
    """An empty queue leaves slots empty."""
    run = start()
    run.add("r", [1], max_tokens=3)
    run.step()
    assert run.engine.stats()["num_requests_running"] == 1
    run.finish()
    assert run.engine.step() == []


def test_a_group_takes_n_slots_from_its_admission_on(start):
    run = start(max_num_seqs=4)
    run.add("a", [1], max_tokens=3)
    run.add("group", [1] * 20, n=4, max_tokens=3)
    run.add("b", [1], max_tokens=3)
    for expected in ({"a"}, {"a"}, {"a"}, {"group"}):
        run.step()
        assert set(tokens_of(run.plans[-1])) == expected
    run.step()
    assert set(tokens_of(run.plans[-1])) == {"group", "group#1", "group#2", "group#3"}
    run.finish()


def test_requests_added_together_share_steps(start):
    """Three at once are batches of three."""
    run = start()
    for request_id in "abc":
        run.add(request_id, [1] * 5, max_tokens=6)
    run.finish()
    assert [len(plan.scheduled) for plan in run.plans] == [3] * 6


def test_a_finished_slot_is_filled_in_the_same_iteration(start):
    """2 done, 4 in; 1 done, 5 in; 3 done, 6 in."""
    run = start(max_num_seqs=3)
    for request_id, max_tokens in zip("123456", [4, 2, 6, 5, 4, 2], strict=True):
        run.add(request_id, [1], max_tokens=max_tokens)
    run.finish()
    timeline = ["".join(sorted(tokens_of(plan))) for plan in run.plans]
    assert timeline == ["123", "123", "134", "134", "345", "345", "456", "56"]


def test_the_batch_changes_size_and_stays_full_under_load(start):
    run = start(max_num_seqs=8)
    for i in range(80):
        run.add(f"r{i}", [1] * (1 + i % 7), max_tokens=3 + 5 * (i % 4))
    sizes = []
    while run.engine.has_unfinished_requests():
        waiting = run.engine.stats()["num_requests_waiting"]
        run.step()
        sizes.append((len(run.plans[-1].scheduled), waiting))
    loaded = [size for size, waiting in sizes if waiting]
    assert sum(loaded) / len(loaded) >= 0.95 * 8
    assert len({size for size, _ in sizes}) > 2


# Priorities


def test_high_priority_overtakes_in_the_queue(start):
    run = start(max_num_seqs=1, scheduling_policy="priority")
    for request_id, priority in (("first", 0), ("low", 5), ("high", -5), ("normal", 0)):
        run.add(request_id, [1], max_tokens=2, priority=priority)
    run.finish()
    started = [new.request_id for plan in run.plans for new in plan.new_requests]
    assert started == ["high", "first", "normal", "low"]


def test_low_priority_is_not_starved_by_a_stream_of_high(start):
    """At one request a second, one of priority 2 waits 20 seconds and no longer."""
    run = start(max_num_seqs=1, scheduling_policy="priority")
    run.add("low", [1], max_tokens=1, priority=2)
    for i in range(60):
        run.add(f"r{i}", [1], max_tokens=1, priority=0)
        run.step()
    low = next(o for o in run.outputs if o.request_id == "low")
    assert 18.0 <= low.metrics.first_scheduled_time <= 22.0


def test_the_lowest_priority_is_preempted(start):
    run = start(num_blocks=1 + 8, scheduling_policy="priority", looks_ahead=False)
    run.add("low", [1] * 30, max_tokens=40, priority=1)
    run.add("high", [2] * 30, max_tokens=40, priority=-1)
    run.finish()
    preempted = {o.request_id for o in run.outputs if o.metrics.num_preemptions}
    assert preempted == {"low"}


# Chunks


@pytest.mark.parametrize("num_decodes", [0, 7])
def test_a_long_prompt_in_chunks(start, counting, num_decodes):
    """It takes ceil(32768 / (2048 - decodes)) steps; all decodes run in each of them."""
    run = start(
        num_blocks=3000,
        executor_class=counting,
        max_position_embeddings=40000,
        max_num_batched_tokens=2048,
        mixed_prefill_tokens=0,
    )
    decodes = {f"d{i}" for i in range(num_decodes)}
    for request_id in sorted(decodes):
        run.add(request_id, [1, 2, 3], max_tokens=100)
    if num_decodes:
        run.step()
    run.add("long", [5] * 32768, max_tokens=1)
    num_before = len(run.plans)
    while ("long", 0) not in run.endings:
        run.step()
        assert decodes <= tokens_of(run.plans[-1]).keys()
        assert run.plans[-1].num_scheduled_tokens <= 2048
    assert len(run.plans) - num_before == -(-32768 // (2048 - num_decodes))
    run.finish()


@pytest.mark.parametrize("takes_more", [True, False])
def test_a_prompt_beside_decodes_takes_small_chunks(start, takes_more):
    """A step that others wait for is short; none waits where all requests are known before."""
    run = start(max_num_batched_tokens=256, mixed_prefill_tokens=16, takes_more=takes_more)
    for request_id, token in (("a", 1), ("b", 2)):
        run.add(request_id, [token] * 100, max_tokens=50)
    run.step()
    assert tokens_of(run.plans[-1]) == ({"a": 16} if takes_more else {"a": 100, "b": 100})
    while any(r.num_output_tokens == 0 for r in run.engine.scheduler.requests.values()):
        run.step()
    run.add("late", [4] * 40, max_tokens=1)
    for expected in (16, 16, 8):
        run.step()
        assert tokens_of(run.plans[-1]) == {"a": 1, "b": 1, "late": expected}
    run.finish()


def test_decodes_younger_than_a_prompt_are_not_pushed_out_by_it(start):
    """A chunk leaves room for the decodes after it, whose order would let it take all."""
    run = start(max_num_batched_tokens=16, long_prefill_token_threshold=8)
    run.add("long", [1] * 100, max_tokens=1)
    for request_id in "ab":
        run.add(request_id, [2], max_tokens=50)
    run.step()
    options = SchedulerOptions(max_num_batched_tokens=16)
    run.engine.scheduler.prefill = PrefillPolicy(options, takes_more=True)
    run.step()
    assert tokens_of(run.plans[-1]) == {"long": 14, "a": 1, "b": 1}
    run.finish()


def test_an_end_that_is_too_long_holds_up_no_longer_prompt(start, monkeypatch):
    """The rest of a long prompt has fewest tokens, and still more than a part may have."""
    run = start(mixed_prefill_tokens=32)
    monkeypatch.setattr(run.engine.scheduler.prefill.chunk_size, "tokens", lambda *_: 16)
    run.add("long", [1] * 51, max_tokens=1)
    run.step()
    run.step()
    run.add("short", [2] * 20, max_tokens=1)
    run.step()
    assert tokens_of(run.plans[-1]) == {"short": 20}
    run.finish()
    assert [tokens_of(plan) for plan in run.plans[3:]] == [{"long": 16}, {"long": 3}]


def test_threshold_leaves_budget_to_others(start):
    run = start(max_num_batched_tokens=64, long_prefill_token_threshold=20)
    for request_id, token in (("a", 1), ("b", 2)):
        run.add(request_id, [token] * 50, max_tokens=1)
    run.finish()
    assert [tokens_of(plan) for plan in run.plans] == [
        {"a": 20, "b": 20},
        {"a": 20, "b": 20},
        {"a": 10, "b": 10},
    ]


def test_without_chunks_a_prompt_runs_whole_or_waits(start):
    run = start(enable_chunked_prefill=False, max_model_len=64, max_num_batched_tokens=64)
    for request_id, token in (("a", 1), ("b", 2)):
        run.add(request_id, [token] * 40, max_tokens=2)
    run.finish()
    assert [tokens_of(plan) for plan in run.plans] == [{"a": 40}, {"a": 1, "b": 40}, {"b": 1}]


# Prefix cache


def test_a_shared_prefix_is_computed_once(start):
    """The second request computes its suffix only, and says so."""
    prefix = list(range(256))
    run = start(mixed_prefill_tokens=0)
    cold = start(mixed_prefill_tokens=0, enable_prefix_caching=False)
    for one in (run, cold):
        one.add("a", [*prefix, 1, 2, 3], max_tokens=5)
        one.finish()
        one.add("b", [*prefix, 7, 8, 9, 10], max_tokens=5)
        one.finish()
    assert tokens_of(run.plans[5]) == {"b": 4}
    assert tokens_of(cold.plans[5]) == {"b": 260}
    assert run.tokens == cold.tokens
    assert {o.num_cached_tokens for o in run.outputs if o.request_id == "b"} == {256}
    stats = run.engine.stats()
    assert (stats["prefix_cache_queries"], stats["prefix_cache_hits"]) == (259 + 260, 256)
    assert cold.engine.stats()["prefix_cache_queries"] == 0


@pytest.mark.parametrize(("block_size", "surplus"), [(4, 0), (16, 2 * (700 % 16))])
def test_a_system_prompt_is_computed_once(start, block_size, surplus):
    """700 + 10 tokens three times: 2.92 times fewer, less a partial block each."""
    run = start(num_blocks=1000, block_size=block_size)
    for i in range(3):
        run.add(f"q{i}", [*range(700), *[i] * 10], max_tokens=4)
        run.finish()
    assert prefilled(run) == 700 + 30 + surplus
    if surplus == 0:
        assert 3 * 710 / prefilled(run) == pytest.approx(2.92, abs=5e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 100}, {"long_prefill_token_threshold": 32}]
)
def test_a_prefix_shared_within_one_step_is_computed_once(start, settings):
    """Also when it takes several steps: each request takes up what the others computed."""
    run = start(**settings)
    prefix = list(range(320))
    for i in range(3):
        run.add(f"r{i}", [*prefix, i, i], max_tokens=4)
    run.finish()
    assert prefilled(run) == 320 + 3 * 2


def test_a_request_hits_what_another_generated(start):
    """Blocks of outputs are cached too: the next turn of a conversation computes its news only."""
    run = start()
    run.add("turn 1", [1] * 20, max_tokens=30)
    run.finish()
    run.add("turn 2", [*[1] * 20, *run.tokens["turn 1", 0], 5, 6], max_tokens=2)
    run.finish()
    assert run.outputs[-1].num_cached_tokens == 48


def test_salt_keeps_tenants_apart(start):
    run = start()
    for i, keys in enumerate([("salt:a",), ("salt:b",), (), ("salt:a",)]):
        run.add(f"r{i}", [1] * 40, max_tokens=1, extra_keys=keys)
        run.finish()
    assert [o.num_cached_tokens for o in run.outputs] == [0, 0, 0, 32]


def test_caching_changes_nothing_for_unique_prompts(start):
    """The same steps with the same tokens in them."""
    traces = []
    for enabled in (True, False):
        run = start(num_blocks=40, enable_prefix_caching=enabled, max_num_seqs=8)
        for i in range(20):
            run.add(f"r{i}", [i, *range(i * 13, i * 13 + 30)], max_tokens=20)
        run.finish()
        traces.append([tokens_of(plan) for plan in run.plans])
    assert traces[0] == traces[1]


# Blocks


def test_a_running_request_keeps_its_blocks_while_cached_ones_go(start):
    run = start(num_blocks=1 + 12)
    run.add("cached", [9] * 64, max_tokens=1)
    run.finish()
    run.add("running", [1] * 60, max_tokens=60)
    run.step()
    run.add("other", [2] * 60, max_tokens=3)
    run.finish()
    assert run.engine.stats()["num_preemptions"] == 0
    run.add("again", [9] * 64, max_tokens=1)
    run.finish()
    assert run.outputs[-1].num_cached_tokens < 64


def test_every_preempted_request_finishes_in_order_of_arrival(start):
    """The oldest never waits for a younger one."""
    run = start(num_blocks=1 + 3 * 5, looks_ahead=False)
    for i in range(8):
        run.add(f"r{i}", [i] * 40, max_tokens=40)
    run.finish()
    assert [request_id for request_id, _ in run.endings] == [f"r{i}" for i in range(8)]
    assert run.engine.stats()["num_preemptions"] > 0


def test_predicted_concurrency_is_what_runs(start):
    """As many sequences as the memory plan says run at once, and never one more."""
    spec = KVCacheSpec(2, 1, 1, 16, "float32")
    demand = MemoryDemand(
        weight_bytes=10_000, weight_dtype="float32", scratch_bytes=0, spec=spec, max_model_len=128
    )
    budget = divide_memory(demand, 10**6, 60_000)
    predicted = budget.num_sequences(128)
    assert predicted == 24
    for surplus in (0, 1):
        run = start(num_blocks=budget.num_blocks, max_model_len=128, mixed_prefill_tokens=0)
        for i in range(predicted + surplus):
            run.add(f"r{i}", [i] * 40, max_tokens=88)
        run.finish()
        assert max(len(plan.scheduled) for plan in run.plans) == predicted
        assert run.engine.stats()["num_preemptions"] == 0


def test_utilization_during_a_run(start, counting):
    """At most 15 slots a sequence are empty, in every step."""
    run = start(num_blocks=2000, executor_class=counting, enable_prefix_caching=False)
    lengths = [round(20 * 100 ** (i / 39)) for i in range(40)]
    for i, length in enumerate(lengths):
        run.add(f"r{i}", [1] * (length // 2), max_tokens=length - length // 2)
    reserved = used = 0
    while run.engine.has_unfinished_requests():
        run.step()
        use = run.kv.slot_use()
        assert use.wasted <= 15 * run.engine.stats()["num_requests_running"]
        reserved, used = reserved + use.reserved, used + use.used
    assert used / reserved >= 0.96

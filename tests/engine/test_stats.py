"""The engine's counters against counts by hand."""

from __future__ import annotations


def test_timeouts_by_stage(start):
    run = start(max_num_seqs=2, max_num_batched_tokens=4, num_blocks=50)
    run.add("decode", [1], max_tokens=60, deadline=30.0)
    run.add("prefill", [2] * 200, max_tokens=2, deadline=20.0)
    run.add("queue", [3], max_tokens=2, deadline=5.0)
    run.finish()
    stats = run.engine.stats()
    for stage in ("queue", "prefill", "decode"):
        assert run.endings[stage, 0] == "timeout"
        assert stats[f'request_timeouts{{stage="{stage}"}}'] == 1


def test_tokens_computed_again_after_preemption(start):
    for caching in (True, False):
        run = start(num_blocks=7, block_size=4, enable_prefix_caching=caching, looks_ahead=False)
        prompts = {"a": [1] * 6, "b": [2] * 6}
        for name, prompt in prompts.items():
            run.add(name, prompt, max_tokens=14)
        seen: dict[str, set[int]] = {name: set() for name in prompts}
        again = 0
        while run.engine.has_unfinished_requests():
            run.step()
            for row in run.plans[-1].scheduled:
                stop = row.num_computed_tokens + row.num_scheduled_tokens
                positions = set(range(row.num_computed_tokens, stop))
                again += len(positions & seen[row.request_id])
                seen[row.request_id] |= positions
        stats = run.engine.stats()
        assert stats["num_preemptions"] > 0
        assert stats["preemption_recomputed_tokens"] == again > 0


def test_steps_and_tokens(start):
    run = start(max_num_batched_tokens=8, block_size=4)
    run.add("a", list(range(20)), max_tokens=5)
    run.finish()
    run.add("b", list(range(20)), max_tokens=5)
    run.finish()
    stats = run.engine.stats()
    sizes = [plan.num_scheduled_tokens for plan in run.plans]
    total, *counts = stats["iteration_tokens_total"]
    assert total == sum(sizes) == stats["num_computed_tokens"]
    assert sum(counts) == len(sizes) == stats["num_steps"]
    assert counts[:2] == [sum(s <= 1 for s in sizes), sum(1 < s <= 8 for s in sizes)]
    assert (stats["prompt_tokens"], stats["generation_tokens"]) == (40, 10)
    assert stats["prefix_cache_queries"] == 40
    hits = 16  # the second request's full blocks, less the one that holds its last token
    assert stats["prefix_cache_hits"] == stats["prompt_tokens_cached"] == hits
    assert stats['prompt_tokens_by_source{source="local_compute"}'] == 40 - hits
    assert stats['prompt_tokens_by_source{source="local_cache_hit"}'] == hits
    assert all(stats[f'step_seconds{{stage="{s}"}}'] > 0 for s in ("schedule", "execute", "update"))


def test_lives_of_blocks(start):
    """On the run's clock, a second a step, against the lives written down by hand."""
    run = start(num_blocks=6, block_size=4, max_num_seqs=1, kv_cache_metrics=True)
    run.add("a", [1] * 8, max_tokens=1)  # two blocks, both full, given out at 0
    run.finish()
    run.clock.advance(9)
    run.add("b", [1] * 8 + [2] * 3, max_tokens=1)  # finds both at 10, given out a third
    run.finish()
    run.clock.advance(19)
    run.add("c", list(range(20, 37)), max_tokens=1)  # takes all five at 30, two of them cached
    run.finish()
    stats = run.engine.stats()
    for stem, values in (
        ("kv_block_reuse_gap_seconds", [10, 10]),
        ("kv_block_lifetime_seconds", [30, 30]),
        ("kv_block_idle_before_evict_seconds", [20, 20]),
    ):
        total, *counts = stats[stem]
        assert (total, sum(counts)) == (sum(values), len(values)), stem
    assert "kv_block_lifetime_seconds" not in start().engine.stats()


def test_gauges_follow_queue_and_blocks(start):
    run = start(max_num_seqs=1, num_blocks=11, block_size=4)
    for name in "abc":
        run.add(name, [1] * 6, max_tokens=8)
    run.step()
    stats = run.engine.stats()
    assert (stats["num_requests_running"], stats["num_requests_waiting"]) == (1, 2)
    assert stats['num_requests_waiting_by_reason{reason="capacity"}'] == 2
    assert stats["kv_cache_usage_perc"] == stats["gpu_cache_usage_perc"] == 2 / 10
    assert stats["kv_cache_fragmentation_perc"] == 1 - 6 / 8
    assert (stats['num_kv_blocks{state="used"}'], stats['num_kv_blocks{state="free"}']) == (2, 8)
    assert stats["num_kv_block_references"] == 2
    run.finish()
    assert run.engine.stats()["kv_cache_usage_perc"] == 0


def test_a_shared_block_has_a_reference_of_each_table(start):
    run = start(max_num_seqs=2, num_blocks=11, block_size=4)
    run.add("a", [1] * 9, max_tokens=8)
    run.step()
    run.add("b", [1] * 9, max_tokens=8)
    run.step()
    stats = run.engine.stats()
    assert stats['num_kv_blocks{state="used"}'] == 4  # two shared, one each
    assert stats["num_kv_block_references"] == 6

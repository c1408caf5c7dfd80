"""Estimated work against the sums written out."""

from __future__ import annotations

import pytest

from quire.core.model.forward_work import ForwardWork, decoder_shape
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.core.step import ScheduledRequest, SchedulerOutput, SequenceResult, StepOutput
from quire.kernels.batch.tree_batch import num_masked_pairs
from quire.planner.machine_speed import MachineSpeed
from quire.runner.step_estimate import StepEstimate

SHAPE = {
    "architecture": "x", "vocab_size": 100, "hidden_size": 8, "num_layers": 3, "num_heads": 4,
    "num_kv_heads": 2, "head_dim": 2, "intermediate_size": 16, "max_position_embeddings": 64,
}  # fmt: skip


def shape_of(spec):
    return decoder_shape(ModelConfig(**SHAPE), 1000, spec.token_bytes)


EXPERTS = {"num_experts": 8, "intermediate_size": 5, "routing": ExpertRouting(top_k=2)}
SHARED = {"shared_size": 7, "shared_gate": True, "dense_layers": (1,)}


@pytest.mark.parametrize("moe", [None, MoEConfig(**EXPERTS), MoEConfig(**EXPERTS, **SHARED)])
def test_a_step(moe):
    config = ModelConfig(**SHAPE, moe=moe)
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    estimate = StepEstimate(decoder_shape(config, 1000, spec.token_bytes))
    rows = [ScheduledRequest("a", 5, 1, [], True), ScheduledRequest("b", 2, 3, [], False)]
    estimate.add(SchedulerOutput(scheduled=rows), StepOutput(), 0.1)
    linears = {"q": (8, 8), "k": (4, 8), "v": (4, 8), "o": (8, 8)}
    dense = [(16, 8), (16, 8), (8, 16)]
    mixed = [(5, 8), (5, 8), (8, 5)] * 2 + [(8, 8)]
    shared = [(7, 8), (7, 8), (8, 7), (1, 8)]
    mlps = dense * 3 if moe is None else mixed * 3
    if moe is not None and moe.shared_size:
        mlps = dense + (mixed + shared) * 2
    per_token = sum(2 * rows * columns for rows, columns in [*linears.values()] * 3 + mlps)
    pairs = 6 + (3 + 4 + 5)  # each new token sees all before it and itself
    attention = 3 * 4 * pairs * (2 * 2 + 2 * 2)  # layers, heads, scores and sums of H = 2
    assert estimate.work.flops == 4 * per_token + attention + 2 * 100 * 8
    assert estimate.work.read_bytes == 1000 + (6 + 5) * spec.token_bytes
    assert estimate.work.write_bytes == 4 * spec.token_bytes
    assert set(estimate.samples().values()) == {
        estimate.work.flops, estimate.work.read_bytes, estimate.work.write_bytes
    }  # fmt: skip


def test_utilization_is_work_by_time_and_by_the_machine():
    speed = MachineSpeed(read=1e6, float32=1e5, bfloat16=4e5, int8=2e5)
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    estimate = StepEstimate(shape_of(spec), speed)
    rows = [ScheduledRequest("a", 1, 3, [], True)]
    # Only the last step counts, whatever came before it.
    estimate.add(SchedulerOutput(scheduled=rows * 3), StepOutput(), 1.0)
    before = estimate.work.flops, estimate.work.read_bytes
    estimate.add(SchedulerOutput(scheduled=rows), StepOutput(), 0.05)
    samples = estimate.samples()
    flops = (estimate.work.flops - before[0]) / (4e5 * 0.05)
    assert samples["model_flops_utilization_perc"] == pytest.approx(flops)
    read = (1000 + 4 * spec.token_bytes) / (1e6 * 0.05)
    assert samples["model_bandwidth_utilization_perc"] == pytest.approx(read)


def test_proposed_tokens_are_computed_like_known_ones():
    speed = MachineSpeed(read=1e6, float32=1e5, bfloat16=4e5, int8=2e5)
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    plain, proposing = (StepEstimate(shape_of(spec), speed) for _ in range(2))
    # One known token and three proposed ones take what four drawn one after another would in one
    # pass; how many of them held is no matter.
    rows = [ScheduledRequest("a", 5, 1, [], True, num_lookahead_tokens=4)]
    result = SequenceResult([7, 8], num_accepted=1, num_proposed=3)
    output = StepOutput({"a": result}, propose_seconds=0.02)
    proposing.add(SchedulerOutput(scheduled=rows), output, 0.05)
    known = [ScheduledRequest("a", 5, 4, [], True)]
    plain.add(SchedulerOutput(scheduled=known), StepOutput(), 0.05)
    other_logits = 3 * 2 * 100 * 8
    assert proposing.work.flops == plain.work.flops + other_logits
    assert proposing.work.read_bytes == plain.work.read_bytes
    assert proposing.work.write_bytes == plain.work.write_bytes
    assert proposing.bandwidth_utilization == pytest.approx(plain.bandwidth_utilization)


def test_what_drafters_compute_is_work_of_the_step():
    speed = MachineSpeed(read=1e6, float32=1e5, bfloat16=4e5, int8=2e5)
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    plain, drafted = (StepEstimate(shape_of(spec), speed) for _ in range(2))
    plan = SchedulerOutput(scheduled=[ScheduledRequest("a", 5, 1, [], True)])
    plain.add(plan, StepOutput(), 0.05)
    output = StepOutput(propose_seconds=0.02, draft_work=ForwardWork(4000, 500, 30))
    part = StepOutput(draft_work=ForwardWork(1000))
    output.add(part)
    drafted.add(plan, output, 0.05)
    assert drafted.work.flops == plain.work.flops + 5000
    assert drafted.work.read_bytes == plain.work.read_bytes + 500
    assert drafted.work.write_bytes == plain.work.write_bytes + 30
    # The step's time has that of drafting in it.
    more = drafted.flop_utilization - plain.flop_utilization
    assert more == pytest.approx(5000 / 0.05 / 4e5)


def test_rows_of_a_tree_see_their_own_paths_only():
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    chain, tree = (StepEstimate(shape_of(spec)) for _ in range(2))
    rows = [ScheduledRequest("a", 5, 1, [], True, num_lookahead_tokens=5)]
    parents = [-1, -1, 0, 0, 1]  # see 1, 1, 2, 2 and 2 of the tree; a chain's 1 to 5
    results = {"a": SequenceResult([7, 8], num_accepted=1, num_proposed=5)}
    plan = SchedulerOutput(scheduled=rows)
    chain.add(plan, StepOutput(results), 0.05)
    masked = num_masked_pairs(parents)
    tree.add(plan, StepOutput(results, num_masked_pairs=masked), 0.05)
    assert masked == (1 + 2 + 3 + 4 + 5) - (1 + 1 + 2 + 2 + 2)
    assert chain.work.flops - tree.work.flops == 3 * 4 * (2 * 2 + 2 * 2) * masked
    assert num_masked_pairs(range(-1, 6)) == 0
    # All slots of the tree are computed, written and read.
    assert (tree.work.read_bytes, tree.work.write_bytes) == (
        chain.work.read_bytes,
        chain.work.write_bytes,
    )


def test_without_a_measured_machine_there_is_no_utilization():
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=2, block_size=4, dtype="float16")
    estimate = StepEstimate(shape_of(spec))
    rows = [ScheduledRequest("a", 1, 3, [], True)]
    estimate.add(SchedulerOutput(scheduled=rows), StepOutput(), 0.05)
    assert not any("utilization" in name for name in estimate.samples())

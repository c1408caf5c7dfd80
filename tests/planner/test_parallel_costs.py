"""What a division costs, by hand: exchanges, bytes, memory of each rank, links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.planner.named_shapes import NAMED_SHAPES
from quire.planner.parallel_costs import (
    LINKS,
    SplitShape,
    buffer_bytes,
    collectives,
    forward_bytes,
    kv_heads_of,
    rank_memory,
    seconds,
    slow_link,
)
from quire.settings.parallel_layout import ParallelLayout

SEVENTY = SplitShape.of_named(NAMED_SHAPES["llama-2-70b"])


@pytest.mark.parametrize("name", NAMED_SHAPES)
def test_named_shapes_have_the_weights_that_their_sizes_say(name):
    shape = NAMED_SHAPES[name]
    moe = None
    if shape.num_experts:
        routing = ExpertRouting(top_k=2)
        moe = MoEConfig(
            num_experts=shape.num_experts,
            intermediate_size=shape.intermediate_size,
            routing=routing,
        )
    config = ModelConfig(
        architecture="any",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=2048,
        tie_word_embeddings=shape.tie_word_embeddings,
        gated_mlp=not name.startswith("gpt"),
        moe=moe,
    )
    assert config.num_parameters == pytest.approx(
        shape.num_parameters, rel=3e-4
    )  # biases are left out


@pytest.mark.parametrize("width", [2, 4, 8])
def test_sums_over_ranks_of_a_70b_model_are_two_a_layer_and_2_62_megabytes_a_token(width):
    """2 x 80 layers x 8,192 x 2 bytes; embeddings and logits are gathered once."""
    found = collectives(SEVENTY, ParallelLayout(width), exact=False, wire_bytes=2)
    reduces = [one for one in found if one.name == "all_reduce"]
    assert sum(one.calls for one in reduces) == 2 * 80
    assert sum(one.row_bytes for one in reduces) == 2 * 80 * 8192 * 2 == 2_621_440
    rows, logits = [one for one in found if one.name != "all_reduce"]
    assert (rows.calls, rows.row_bytes, rows.of_logits) == (1, 2 * 8192, False)
    assert (logits.calls, logits.row_bytes, logits.of_logits) == (1, 2 * 32000, True)


def test_exact_sums_gather_inputs_and_outputs():
    found = collectives(SEVENTY, ParallelLayout(2))
    gathers = [one for one in found if one.name == "all_gather_columns"]
    rows = 80 * (3 * 8192 + 28672) * 4 + 8192 * 4
    assert sum(one.calls for one in gathers) == 4 * 80 + 1
    assert sum(one.row_bytes for one in gathers) == rows
    assert forward_bytes(found, 5, 2) == 5 * rows + 2 * 4 * 32000


def test_heads_may_give_more_or_less_than_a_hidden_state():
    """N H of Gemma is twice D, and of others half of it: the rows of attention are N H wide."""
    for attended in (16384, 4096):
        shape = replace(SEVENTY, attended_dim=attended)
        found = {one.what: one for one in collectives(shape, ParallelLayout(2))}
        assert found["attention's rows"].row_bytes == 80 * attended * 4
        assert found["attention's outputs"].row_bytes == 80 * 8192 * 4


def test_stages_send_two_rows_at_each_border():
    (one,) = collectives(SEVENTY, ParallelLayout(1, 4))
    assert (one.name, one.calls, one.row_bytes) == ("send", 6, 3 * 2 * 8192 * 4)


def test_one_process_exchanges_nothing():
    assert collectives(SEVENTY, ParallelLayout()) == []


def test_experts_send_the_rows_of_those_chosen():
    mixtral = SplitShape.of_named(NAMED_SHAPES["mixtral-8x7b"])
    found = collectives(mixtral, ParallelLayout(4), whole_experts=True)
    (routed,) = [one for one in found if "expert" in one.what]
    assert (routed.calls, routed.row_bytes) == (32, 32 * 2 * 4096 * 4)


@pytest.mark.parametrize(
    ("link", "expected"),
    [("nvlink", 2_621_440 / 450e9), ("pcie", 2_621_440 / 64e9), ("10gbe", 2_621_440 / 1.25e9)],
)
def test_two_ranks_receive_a_sum_s_payload_once(link, expected):
    """A ring of n ranks moves 2 (n - 1) / n of it: for two ranks all of it."""
    layout = ParallelLayout(2)
    found = [
        one
        for one in collectives(SEVENTY, layout, exact=False, wire_bytes=2)
        if one.name == "all_reduce"
    ]
    waits = 160 * LINKS[link].delay
    assert seconds(found, layout, LINKS[link], 1, 0) == pytest.approx(waits + expected)


@pytest.mark.parametrize(
    ("width", "link", "warned"),
    [
        (8, "nvlink", False), (4, "shared-memory", False), (2, "pcie", False),
        (4, "pcie", True), (2, "10gbe", False), (4, "10gbe", True),
    ],
)  # fmt: skip
def test_a_slow_link_is_warned_of_above_two_shards(width, link, warned):
    assert (slow_link(ParallelLayout(width), LINKS[link]) is not None) == warned


@pytest.mark.parametrize(
    ("heads", "width", "expected"),
    [(8, 2, [4, 4]), (8, 16, [1] * 16), (3, 2, [2, 1]), (2, 4, [1] * 4)],
)
def test_heads_are_divided_and_then_copied(heads, width, expected):
    shape = SplitShape(
        num_layers=2, hidden_size=64, attended_dim=64, num_kv_heads=heads, head_dim=8,
        inner_dim=128, vocab_size=100, num_parameters=10**6,
    )  # fmt: skip
    assert kv_heads_of(shape, width) == expected


@pytest.mark.parametrize(("width", "stages"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 4), (4, 2)])
def test_ranks_hold_the_model_once(width, stages):
    spec = NAMED_SHAPES["llama-2-70b"].kv_spec("bfloat16")
    assert spec is not None
    layout, total = ParallelLayout(width, stages), 2 * SEVENTY.num_parameters
    found = rank_memory(SEVENTY, spec, layout, total, 2048)
    assert sum(one.weights for one in found) == pytest.approx(total, abs=width * stages)
    assert sum(one.kv_token for one in found) == spec.token_bytes
    assert len({one.buffers for one in found}) == 1


def test_buffers_hold_the_widest_exchange_of_the_largest_step_twice():
    assert buffer_bytes(SEVENTY, ParallelLayout(), 2048) == 0
    assert buffer_bytes(SEVENTY, ParallelLayout(2), 2048) == 2 * 2048 * 28672 * 4
    assert buffer_bytes(SEVENTY, ParallelLayout(1, 2), 2048) == 2 * 2048 * 2 * 8192 * 4


def test_copied_heads_take_their_projections_along():
    shape = SplitShape(
        num_layers=1, hidden_size=64, attended_dim=64, num_kv_heads=2, head_dim=8,
        inner_dim=128, vocab_size=100, num_parameters=10**6,
    )  # fmt: skip
    spec = KVCacheSpec(1, 2, 8, 16, "float32")
    four = rank_memory(shape, spec, ParallelLayout(4), 4 * 10**6, 8)
    pairs = 2 * 8 * 64
    each = (shape.layer_parameters - 2 * pairs) / 4 + pairs + 2 * 1600
    assert [one.weights for one in four] == [round(4 * each)] * 4
    assert [one.kv_token for one in four] == [spec.token_bytes // 2] * 4

"""Which division is chosen: as small as possible, shards within a node, stages across nodes."""

from __future__ import annotations

import pytest

from quire.planner.named_shapes import NAMED_SHAPES
from quire.planner.parallel_costs import LINKS, SplitShape
from quire.planner.parallel_plan import Fleet, PlannedLoad, plan_layout


def load(name: str, weight_size: int, kv_tokens: int = 32768) -> PlannedLoad:
    spec = NAMED_SHAPES[name].kv_spec("bfloat16")
    assert spec is not None
    return PlannedLoad(
        shape=SplitShape.of_named(NAMED_SHAPES[name]),
        spec=spec,
        weight_bytes=weight_size * NAMED_SHAPES[name].num_parameters,
        kv_tokens=kv_tokens,
        max_rows=2048,
    )


def fleet(nodes: int, devices: int, gigabytes: float, link: str = "nvlink") -> Fleet:
    usable = int(0.9e9 * gigabytes)
    return Fleet(num_nodes=nodes, node_devices=devices, device_bytes=usable, link=LINKS[link])


@pytest.mark.parametrize(
    ("name", "size", "where", "expected"),
    [
        ("llama-3.1-8b", 2, fleet(1, 8, 80), (1, 1)),
        ("llama-3.1-70b", 2, fleet(1, 8, 80), (4, 1)),
        ("llama-3.1-70b", 2, fleet(1, 8, 80, "pcie"), (2, 2)),
        ("llama-3.1-70b", 2, fleet(2, 2, 80), (2, 2)),
        ("llama-3.1-405b", 1, fleet(1, 8, 80), (8, 1)),
        ("llama-3.1-405b", 1, fleet(1, 8, 80, "pcie"), (2, 4)),
        ("llama-3.1-405b", 1, fleet(2, 4, 80), (4, 2)),
        ("llama-3.1-405b", 2, fleet(2, 8, 80), (8, 2)),
        ("llama-3.1-405b", 2, fleet(4, 4, 80), (4, 3)),
        ("mixtral-8x7b", 2, fleet(1, 4, 80), (2, 1)),
    ],
)
def test_choices(name, size, where, expected):
    plan = plan_layout(load(name, size), where)
    first = plan.candidates[0]
    assert (first.layout.tensor, first.layout.pipeline) == expected, plan.reasons
    for one in plan.candidates:
        assert one.layout.tensor <= where.node_devices
        assert one.rank_bytes <= where.device_bytes
        assert one.num_nodes <= where.num_nodes


def test_405b_in_8_bits_on_8_cards_of_80_gb_goes_as_8_shards_or_4_in_2_stages():
    plan = plan_layout(load("llama-3.1-405b", 1), fleet(1, 8, 80))
    layouts = [(one.layout.tensor, one.layout.pipeline) for one in plan.candidates]
    assert layouts[:2] == [(8, 1), (4, 2)]


def test_a_model_that_fits_one_device_is_not_divided():
    plan = plan_layout(load("llama-3.1-8b", 2), fleet(1, 8, 80))
    assert len(plan.candidates) == 1
    assert "fits one device" in plan.reasons[0] and "do not divide it" in plan.reasons[0]


def test_what_nothing_holds_is_said_with_the_best_division():
    plan = plan_layout(load("llama-3.1-405b", 2), fleet(1, 4, 24))
    assert plan.candidates == () and "must fit in 21.6 GB" in plan.reasons[0]

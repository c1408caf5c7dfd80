"""One device's memory by use, and its part of a KV cache."""

import pytest

from quire.planner.device_memory import DeviceMemory, sequences_bytes
from quire.planner.named_shapes import NAMED_SHAPES, parse_parameters

SPEC = NAMED_SHAPES["llama-3.1-8b"].kv_spec("bfloat16")


@pytest.mark.parametrize("fractions", [{}, {"fraction": 0.5}, {"free_fraction": 0.5}])
@pytest.mark.parametrize("num_devices", [1, 3])
def test_all_bytes_have_a_use(fractions, num_devices):
    device = DeviceMemory(total=10**9, scratch=10**7, num_devices=num_devices, **fractions)
    uses = device.divide(10**8 + 1)
    assert sum(uses.values()) == 10**9
    assert uses["weights"] * num_devices >= 10**8 + 1 and uses["KV"] > 0


def test_weights_that_do_not_fit_leave_no_kv():
    uses = DeviceMemory(total=10**9).divide(2 * 10**9)
    assert uses["KV"] == 0 and uses["headroom"] < 0


@pytest.mark.parametrize(("num_devices", "heads"), [(1, 8), (2, 4), (16, 1), (3, None), (12, None)])
def test_kv_heads_are_shared_or_copied(num_devices, heads):
    part = DeviceMemory(total=10**9, num_devices=num_devices).part_of(SPEC)
    assert (part and part.num_kv_heads) == heads


def test_sequences_take_their_tokens():
    assert sequences_bytes(SPEC, 5, 3) == 15 * SPEC.token_bytes


@pytest.mark.parametrize(
    ("text", "count"), [("70B", 70 * 10**9), ("1.2b", 1_200_000_000), ("7", None), ("x7b", None)]
)
def test_a_number_of_parameters(text, count):
    assert parse_parameters(text) == count

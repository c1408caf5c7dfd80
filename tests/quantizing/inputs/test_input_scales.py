"""Scales of inputs: of which modules, and what is told of those that saw none."""

from __future__ import annotations

import numpy as np

from quire.models.weight_map import LinearWeights
from quire.quantizing.inputs.input_scales import input_scales
from quire.quantizing.inputs.input_sums import InputSums
from quire.quantizing.scheme import create_scheme


def test_modules_that_ask_for_it_have_the_scale_of_what_they_share() -> None:
    linears = [LinearWeights(("a", "b"), (32, 32), 32), LinearWeights(("c",), (32,), 32)]
    static = create_scheme("fp8", {"static_inputs": True})
    schemes = {"a": static, "b": create_scheme("fp8", {}), "c": static}
    sums = InputSums(8)
    for size in (-896, 224):
        inputs = np.ones((4, 32), np.float32)
        inputs[1, 3] = size
        sums.add(("a", "b"), inputs)
    scales, notices = input_scales(linears, schemes, sums)
    assert {name: scale.tolist() for name, scale in scales.items()} == {
        "a.input_scale": [2.0],
        "c.input_scale": [1.0],
    }
    assert notices == ["c saw no inputs; the scale of its inputs is 1"]

"""What experts' matrices are given, as it is seen while a layer is computed."""

import numpy as np
import pytest
import torch

from quire.core.model.moe_config import ExpertRouting
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.reference.activation import gated
from quire.quantizing.inputs.observed_backend import ObservedBackend

WIDTH, MIDDLE, NUM_EXPERTS = 12, 20, 3


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
def test_each_expert_sees_the_rows_that_chose_it(activation, biased):
    random = np.random.default_rng(0)
    seen = {}
    backend = ObservedBackend(CpuBackend(threads=1), lambda modules, x: seen.update({modules: x}))

    def tensors(shape, part):
        values = [random.standard_normal(shape, dtype=np.float32) for _ in range(NUM_EXPERTS)]
        return [[HostTensor(f"{i}.{part}", "float32", value)] for i, value in enumerate(values)]

    up, down = tensors((2 * MIDDLE, WIDTH), "up.weight"), tensors((WIDTH, MIDDLE), "down.weight")
    biases = tensors(2 * MIDDLE, "up.bias") + tensors(WIDTH, "down.bias") if biased else ()
    given = up, down, activation
    experts = backend.experts(*given, dtype="float32", biases=iter(biases))
    x = random.standard_normal((9, WIDTH), dtype=np.float32)
    logits = random.standard_normal((9, NUM_EXPERTS), dtype=np.float32)
    ids, weights = backend.route(logits, ExpertRouting(top_k=2))
    out = experts(x, ids, weights, np.empty_like(x))
    plain = CpuBackend(threads=1).experts(*given, dtype="float32", biases=iter(biases))
    np.testing.assert_array_equal(out, plain(x, ids, weights, np.empty_like(x)))
    for expert in range(NUM_EXPERTS):
        rows = x[(ids == expert).any(axis=1)]
        np.testing.assert_array_equal(seen[f"{expert}.up",], rows)
        product = rows @ up[expert][0].array.T + (biases[expert][0].array if biased else 0)
        want = gated(torch.from_numpy(product), activation).numpy()
        np.testing.assert_allclose(seen[f"{expert}.down",], want, rtol=1e-4, atol=1e-5)

"""Routing and experts against the reference, and rows that do not depend on the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Weight
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.moe import CpuExperts
from quire.kernels.cpu.native import native
from quire.kernels.host_tensor import HostTensor
from quire.kernels.reference.backend import ReferenceBackend
from quire.kernels.reference.moe import ReferenceExperts
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import random_quantized

ISAS = ALL_ISAS
torch.set_num_threads(1)
CPU, REFERENCE = CpuBackend(threads=1), ReferenceBackend()
WIDTH, MIDDLE = 24, 40


def experts(num_experts: int) -> tuple[CpuExperts, ReferenceExperts]:
    rng = np.random.default_rng(3)

    def matrices(rows: int, columns: int) -> list[HostTensor]:
        return [
            HostTensor("w", "float32", rng.standard_normal((rows, columns), dtype=np.float32))
            for _ in range(num_experts)
        ]

    gate_up, down = matrices(2 * MIDDLE, WIDTH), matrices(WIDTH, MIDDLE)
    made = [
        backend.experts([[w] for w in gate_up], [[w] for w in down], "silu", dtype="float32")
        for backend in (CPU, REFERENCE)
    ]
    return made[0], made[1]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (8, 2), (17, 4), (60, 8)])
def test_route_equals_the_reference(
    isa: str, num_experts: int, top_k: int, renormalize: bool
) -> None:
    logits = np.random.default_rng(0).standard_normal((50, num_experts)).astype(np.float32) * 2
    logits[:10, : num_experts // 2] = 1.5  # ties
    before = logits.copy()
    ids, weights = CPU.route(logits, top_k, renormalize)
    want_ids, want_weights = REFERENCE.route(torch.from_numpy(logits), top_k, renormalize)
    np.testing.assert_array_equal(ids, want_ids.numpy())
    np.testing.assert_allclose(weights, want_weights.numpy(), rtol=2e-6)
    np.testing.assert_array_equal(logits, before)
    if renormalize:
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 2, 33])
def test_experts_equal_the_reference(isa: str, rows: int) -> None:
    ours, theirs = experts(5)
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, WIDTH), dtype=np.float32)
    logits = rng.standard_normal((rows, 5), dtype=np.float32)
    ids, weights = CPU.route(logits, 2, True)
    got = ours(x, ids, weights, np.empty_like(x))
    want = theirs(*map(torch.from_numpy, (x, ids, weights, np.empty_like(x))))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


def test_a_rows_bits_depend_on_that_row_alone(isa: str, threads: int) -> None:
    ours, _ = experts(5)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, WIDTH), dtype=np.float32)
    ids, weights = CPU.route(rng.standard_normal((40, 5), dtype=np.float32), 3, False)
    together = ours(x, ids, weights, np.empty_like(x))
    for row in range(40):
        one = slice(row, row + 1)
        alone = ours(x[one], ids[one], weights[one], np.empty_like(x[one]))
        np.testing.assert_array_equal(alone[0], together[row])


def stack(kind: str, rows: int, columns: int, seed: int) -> list[Weight]:
    """The matrices of one expert's product: two halves, held alike or in two ways."""
    if kind in ("float32", "bfloat16", "float16"):
        values = np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)
        return [HostTensor("w", "float32", values)]
    formats = {"int8": [(8, 32, False, False)] * 2, "int4": [(4, 32, True, False)] * 2}
    formats["mixed"] = [(4, 32, False, True), (6, 16, False, False)]
    halves = formats[kind]
    return [
        random_quantized(rows // 2, columns, *form, seed=seed + i) for i, form in enumerate(halves)
    ]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int8", "int4", "mixed"])
@pytest.mark.parametrize("rows", [1, 7, 90])
def test_all_experts_at_once_equal_each_alone(isa: str, threads: int, kind: str, rows: int) -> None:
    """Bit for bit, with matrices large enough to be cut into pieces, and an expert without rows."""
    width, middle, num_experts = 96, 1024, 5
    dtype = kind if kind in ("bfloat16", "float16") else "float32"
    weights = [stack(kind, 2 * middle, width, i) for i in range(num_experts)]
    down_weights = [stack(kind, width, middle, 50 + i) for i in range(num_experts)]
    gate_up = [CPU.linear(matrices, dtype=dtype) for matrices in weights]
    down = [CPU.linear(matrices, dtype=dtype) for matrices in down_weights]
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, width), dtype=np.float32)
    ids = random.integers(0, num_experts - 1, (rows, 1)).astype(np.int32)
    ours = CPU.experts(weights, down_weights, "silu", dtype=dtype)
    assert ours.nbytes == sum(linear.nbytes for linear in (*gate_up, *down))
    got = ours(x, ids, np.ones((rows, 1), np.float32), np.empty_like(x))
    for row in range(rows):
        expert, one = ids[row, 0], x[row : row + 1]
        activated = np.empty((1, middle), np.float32)
        native.gated_activation(gate_up[expert](one), 0, 1, middle, activated)
        np.testing.assert_array_equal(got[row], down[expert](activated)[0])


def test_wrong_routes_are_refused() -> None:
    ours, _ = experts(2)
    x = np.zeros((1, WIDTH), np.float32)
    weights = np.ones((1, 1), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"ids must be in \[0, 2\)"):
        ours(x, np.array([[2]], np.int32), weights, x)
    with pytest.raises(UnsupportedInputError, match="ids and weights"):
        ours(x, np.zeros((2, 1), np.int32), weights, x)
    with pytest.raises(UnsupportedInputError, match=r"top_k must be in 1\.\.E"):
        CPU.route(np.zeros((1, 4), np.float32), 5, True)
    with pytest.raises(UnsupportedInputError, match="every expert must map"):
        matrices = [[HostTensor("w", "float32", x)]] * 2
        CPU.experts(matrices, matrices, "silu", dtype="float32")

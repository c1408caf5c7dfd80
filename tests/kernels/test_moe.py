"""Routing and experts against the reference, and rows that do not depend on the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.core.model.moe_config import ExpertRouting
from quire.kernels.backend import Weight
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.moe import CpuExperts
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.reference.backend import ReferenceBackend
from quire.kernels.reference.moe import ReferenceExperts
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import random_quantized
from tests.lazy_packages import lazy_package

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("linear", "linear_quantized")
transformers = lazy_package("transformers")
torch.set_num_threads(1)
CPU, REFERENCE = CpuBackend(threads=1), ReferenceBackend()
WIDTH, MIDDLE = 24, 40


def experts(
    num_experts: int, activation: str = "silu", *, biased: bool = False
) -> tuple[CpuExperts, ReferenceExperts]:
    rng = np.random.default_rng(3)

    def matrices(rows: int, columns: int) -> list[HostTensor]:
        return [
            HostTensor("w", "float32", rng.standard_normal((rows, columns), dtype=np.float32))
            for _ in range(num_experts)
        ]

    gate_up, down = matrices(2 * MIDDLE, WIDTH), matrices(WIDTH, MIDDLE)
    sizes = [2 * MIDDLE] * num_experts + [WIDTH] * num_experts if biased else []
    vectors = [rng.standard_normal(size, dtype=np.float32) for size in sizes]
    biases = [[HostTensor("b", "float32", vector)] for vector in vectors]
    made = [
        backend.experts(
            [[w] for w in gate_up], [[w] for w in down], activation, dtype="float32", biases=biases
        )
        for backend in (CPU, REFERENCE)
    ]
    return made[0], made[1]


ROUTINGS = {
    "one": ExpertRouting(top_k=1),
    "softmax": ExpertRouting(top_k=4, renormalize=False),
    "mixtral": ExpertRouting(top_k=2),
    "scaled": ExpertRouting(top_k=3, renormalize=False, scale=16.0),
    "sigmoid": ExpertRouting(top_k=8, scores="sigmoid", scale=2.5),
    "one-group": ExpertRouting(top_k=6, num_groups=4, renormalize=False),
    "deepseek-v2": ExpertRouting(
        top_k=6, renormalize=False, scale=16.0, num_groups=6, top_groups=3
    ),
    "deepseek-v3": ExpertRouting(
        top_k=8, scores="sigmoid", scale=2.5, num_groups=6, top_groups=2, group_best=2
    ),
    "all-of-a-group": ExpertRouting(top_k=10, num_groups=6, top_groups=1, group_best=2),
}


def case(num_experts: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (50, E), some of them equal, and a bias (E,)."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((50, num_experts)).astype(np.float32) * 2
    logits[:10, : num_experts // 2] = 1.5
    return logits, random.standard_normal(num_experts).astype(np.float32)


@pytest.mark.kernels("route")
@pytest.mark.parametrize("is_biased", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_route_equals_the_reference(isa: str, name: str, is_biased: bool) -> None:
    routing, (logits, bias) = ROUTINGS[name], case(60)
    added = bias if is_biased else None
    before = logits.copy()
    ids, weights = CPU.route(logits, routing, added)
    theirs = None if added is None else torch.from_numpy(added)
    want_ids, want_weights = REFERENCE.route(torch.from_numpy(logits), routing, theirs)
    np.testing.assert_array_equal(ids, want_ids.numpy())
    np.testing.assert_allclose(weights, want_weights.numpy(), rtol=4e-6)
    np.testing.assert_array_equal(logits, before)
    if routing.renormalize:
        np.testing.assert_allclose(weights.sum(1), routing.scale, rtol=2e-6)


@pytest.mark.kernels("route")
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (8, 2), (17, 17)])
def test_few_experts(isa: str, num_experts: int, top_k: int) -> None:
    logits, _ = case(num_experts)
    routing = ExpertRouting(top_k=top_k)
    ids, weights = CPU.route(logits, routing)
    want_ids, want_weights = REFERENCE.route(torch.from_numpy(logits), routing)
    np.testing.assert_array_equal(ids, want_ids.numpy())
    np.testing.assert_allclose(weights, want_weights.numpy(), rtol=2e-6)


def oracles() -> dict[str, tuple[Any, ExpertRouting]]:
    """Routers of transformers with the identity as matrix, so that inputs are logits."""
    models = transformers.models
    size = {"hidden_size": 60, "num_experts_per_tok": 6, "num_attention_heads": 4}
    groups = {"n_group": 6, "topk_group": 3, "routed_scaling_factor": 2.5}
    three = {"num_groups": 6, "top_groups": 3, "scale": 2.5}
    second = transformers.DeepseekV2Config(
        **size, **groups, n_routed_experts=60, topk_method="group_limited_greedy"
    )
    third = transformers.DeepseekV3Config(**size, **groups, n_routed_experts=60)
    openai = transformers.GptOssConfig(**size, num_local_experts=60)
    qwen = transformers.Qwen3MoeConfig(**size, num_experts=60, norm_topk_prob=True)
    return {
        "deepseek-v2": (
            models.deepseek_v2.modeling_deepseek_v2.DeepseekV2TopkRouter(second),
            ExpertRouting(top_k=6, renormalize=False, **three),
        ),
        "deepseek-v3": (
            models.deepseek_v3.modeling_deepseek_v3.DeepseekV3TopkRouter(third),
            ExpertRouting(top_k=6, scores="sigmoid", group_best=2, **three),
        ),
        "gpt-oss": (
            models.gpt_oss.modeling_gpt_oss.GptOssTopKRouter(openai),
            ExpertRouting(top_k=6),
        ),
        "qwen3": (
            models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeTopKRouter(qwen),
            ExpertRouting(top_k=6),
        ),
    }


@pytest.mark.kernels("route")
@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3", "gpt-oss", "qwen3"])
def test_route_is_that_of_transformers(isa: str, name: str) -> None:
    router, routing = oracles()[name]
    logits, bias = case(60)
    logits = logits[10:]  # transformers does not say which of equal ones it takes
    with torch.no_grad():
        router.weight.copy_(torch.eye(60))
        if name == "deepseek-v3":
            router.e_score_correction_bias.copy_(torch.from_numpy(bias))
        _, theirs, chosen = router(torch.from_numpy(logits))
    ids, weights = CPU.route(logits, routing, bias if name == "deepseek-v3" else None)
    order, own = chosen.argsort(dim=-1), torch.from_numpy(ids).argsort(dim=-1)
    np.testing.assert_array_equal(np.sort(ids), chosen.gather(-1, order).numpy())
    want = theirs.gather(-1, order).numpy()
    np.testing.assert_allclose(torch.from_numpy(weights).gather(-1, own), want, rtol=4e-6)


@pytest.mark.kernels("route")
def test_scores_of_zero_are_not_divided_by(isa: str) -> None:
    """Sigmoids far to the left are 0, and so is their sum."""
    logits = np.full((1, 8), -200, np.float32)
    ids, weights = CPU.route(logits, ExpertRouting(top_k=2, scores="sigmoid"))
    np.testing.assert_array_equal(ids, [[0, 1]])
    np.testing.assert_array_equal(weights, [[0, 0]])


@pytest.mark.kernels("add_gated_rows")
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (9, 64)])
def test_gated_rows_are_added(isa: str, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(2)
    x, out = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
    gate = random.standard_normal((shape[0], 1), dtype=np.float32) * 4
    want = REFERENCE.add_gated_rows(*(torch.from_numpy(a.copy()) for a in (x, gate, out)))
    got = CPU.add_gated_rows(x, gate, out)
    assert got is out
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.kernels("scale_rows")
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (9, 64)])
def test_rows_are_scaled_in_place(isa: str, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(2)
    x, scales = random.standard_normal(shape, np.float32), np.ones((shape[0], 1), np.float32)
    scales += np.arange(shape[0], dtype=np.float32)[:, None]
    want = REFERENCE.scale_rows(*(torch.from_numpy(a.copy()) for a in (x, scales, x)))
    np.testing.assert_array_equal(CPU.scale_rows(x, scales, x), want.numpy())


@pytest.mark.parametrize(
    ("activation", "biased"), [("silu", False), ("gelu", True), ("clamped_swiglu", True)]
)
@pytest.mark.parametrize("rows", [0, 1, 2, 33])
def test_experts_equal_the_reference(isa: str, rows: int, activation: str, biased: bool) -> None:
    ours, theirs = experts(5, activation, biased=biased)
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, WIDTH), dtype=np.float32)
    logits = rng.standard_normal((rows, 5), dtype=np.float32)
    ids, weights = CPU.route(logits, ExpertRouting(top_k=2))
    got = ours(x, ids, weights, np.empty_like(x))
    want = theirs(*map(torch.from_numpy, (x, ids, weights, np.empty_like(x))))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)


def test_a_rows_bits_depend_on_that_row_alone(isa: str, threads: int) -> None:
    ours, _ = experts(5)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, WIDTH), dtype=np.float32)
    ids, weights = CPU.route(rng.standard_normal((40, 5), dtype=np.float32), ExpertRouting(top_k=3))
    together = ours(x, ids, weights, np.empty_like(x))
    for row in range(40):
        one = slice(row, row + 1)
        alone = ours(x[one], ids[one], weights[one], np.empty_like(x[one]))
        np.testing.assert_array_equal(alone[0], together[row])


def test_products_can_be_changed_and_other_rows_keep_their_bits(isa: str) -> None:
    """What is added to a product depends on its inputs, so that these are checked, too."""
    ours, theirs = experts(5)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, WIDTH), dtype=np.float32)
    ids, weights = CPU.route(rng.standard_normal((9, 5), dtype=np.float32), ExpertRouting(top_k=3))

    def change(given: Any, made: Any, places: np.ndarray) -> None:
        for place in places[4:, 1].tolist():  # of the last rows, those of the second expert
            made[place] += 0.5 * given[place].sum()

    got = ours.changed(x, ids, weights, np.empty_like(x), change, change)
    arrays = (torch.from_numpy(array) for array in (x, ids, weights, np.empty_like(x)))
    want = theirs.changed(*arrays, change, change)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)
    plain = ours(x, ids, weights, np.empty_like(x))
    np.testing.assert_array_equal(got[:4], plain[:4])
    assert (got[4:] != plain[4:]).any(axis=1).all()


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


def _nothing(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> None:
    pass


def test_wrong_routes_are_refused() -> None:
    ours, _ = experts(2)
    x = np.zeros((1, WIDTH), np.float32)
    weights = np.ones((1, 1), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"ids must be in \[0, 2\)"):
        ours(x, np.array([[2]], np.int32), weights, x)
    with pytest.raises(UnsupportedInputError, match="ids and weights"):
        ours(x, np.zeros((2, 1), np.int32), weights, x)
    with pytest.raises(UnsupportedInputError, match=r"ids must be in \[0, 2\)"):
        ours.changed(x, np.array([[-1]], np.int32), weights, x, _nothing, _nothing)
    with pytest.raises(UnsupportedInputError, match=r"top_k must be in 1\.\.E"):
        CPU.route(np.zeros((1, 4), np.float32), ExpertRouting(top_k=5))
    with pytest.raises(UnsupportedInputError, match="every expert must map"):
        matrices = [[HostTensor("w", "float32", x)]] * 2
        CPU.experts(matrices, matrices, "silu", dtype="float32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_groups": 3}, "groups must divide 8 experts"),
        ({"num_groups": 4, "top_groups": 5}, "groups must divide 8 experts"),
        ({"num_groups": 4, "top_k": 3}, "must hold top_k"),
        ({"num_groups": 8, "top_groups": 8, "group_best": 2}, "must hold top_k"),
        ({"scores": "tanh"}, "scores must be softmax or sigmoid"),
    ],
)
def test_routings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    routing = ExpertRouting(**{"top_k": 2, **settings})
    with pytest.raises(UnsupportedInputError, match=message):
        CPU.route(np.zeros((1, 8), np.float32), routing)


def test_other_shapes_are_refused() -> None:
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"a bias \(8,\)"):
        CPU.route(x, ExpertRouting(top_k=2), x[0, :4])
    with pytest.raises(UnsupportedInputError, match=r"factor of each row \(T, 1\)"):
        CPU.add_gated_rows(x, x, x)


def test_a_product_of_each_expert_multiplies_its_rows() -> None:
    """Bit for bit what a linear of that expert alone gives; the reference within rounding."""
    rng = np.random.default_rng(5)
    matrices = [
        HostTensor("w", "float32", rng.standard_normal((37, WIDTH), dtype=np.float32))
        for _ in range(3)
    ]
    x, starts = rng.standard_normal((11, WIDTH), dtype=np.float32), [0, 4, 4, 11]
    ours, reference = (
        backend.grouped_linear([[matrix] for matrix in matrices], dtype="float32")
        for backend in (CPU, REFERENCE)
    )
    got = ours(x, starts, np.empty((11, 37), np.float32))
    for matrix, rows in ((matrices[0], slice(0, 4)), (matrices[2], slice(4, 11))):
        alone = CPU.linear([matrix], dtype="float32")
        np.testing.assert_array_equal(got[rows], alone(x[rows]))
    want = reference(torch.from_numpy(x), starts, torch.empty(11, 37)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="starts must go up"):
        ours(x, [0, 5, 4, 11], got)

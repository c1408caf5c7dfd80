"""Attention over a tree of tokens: each row gets the bits of its path computed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.tree_batch import BatchTree, add_trees, tree_paths
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.reference.attention import ReferenceAttention
from quire.kernels.reference.kv_cache import ReferenceKVCache
from tests.kernels.attention_cases import SHAPES, Case, Tables
from tests.kernels.attention_runs import attend, random_qkv, rows_of, run_cpu
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.torch_copies import tensors

torch.set_num_threads(1)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")
#: Known tokens of requests with a tree, those of them that the step computes, and the trees.
TREES = [
    (21, 1, [-1, 0, 1, 0, -1, 4, 4, 1, 7]),
    (250, 3, [-1, -1, 0, 1, 2, 2, 4, 6, 7, 8, 3, 0, -1, 12]),  # across two pieces
    (1, 1, [-1, -1]),
    (300, 2, [-1, 0, 1, 2, 3]),  # a chain
    (575, 1, [-1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 9]),
]
CHAIN = 40  # of a request with none


def tree_step(case: Case, tables: Tables) -> ForwardBatch:
    """Return the step of all requests, the one without a tree in the middle."""
    parts = [(i, known - own, known + len(tree)) for i, (known, own, tree) in enumerate(TREES)]
    parts.insert(2, (len(TREES), 0, CHAIN))
    step = tables.step(parts)
    trees = [
        BatchTree(i + (i >= 2), known, tree_paths(tree)) for i, (known, _, tree) in enumerate(TREES)
    ]
    add_trees(step, case.block_size, trees)
    return step


def alone(case: Case, qkv: list[np.ndarray]) -> list[np.ndarray]:
    """Return what the rows of the step get when each path to a leaf is a sequence of its own."""
    found = []
    for i, (known, own, tree) in enumerate(TREES):
        rows = np.empty((own + len(tree), case.num_heads * case.head_dim), np.float32)
        for path in tree_paths(tree):
            if path[-1] in tree:
                continue  # The paths that go on there have its row.
            sequence = np.concatenate([qkv[i][:known], qkv[i][known:][path]])
            run = run_cpu(
                case, Tables(case, [len(sequence)]), [sequence], [[(0, 0, len(sequence))]]
            )
            rows[[*range(own), *(own + node for node in path)]] = run[0][known - own :]
        found.append(rows)
    found.insert(2, run_cpu(case, Tables(case, [CHAIN]), [qkv[-1]], [[(0, 0, CHAIN)]])[0])
    return found


def step_rows(case: Case, step: ForwardBatch, qkv: list[np.ndarray]) -> np.ndarray:
    parts = [(i, known - own, known + len(tree)) for i, (known, own, tree) in enumerate(TREES)]
    parts.insert(2, (len(TREES), 0, CHAIN))
    return rows_of(qkv, parts)


LENS = [known + len(tree) for known, _, tree in TREES] + [CHAIN]


@pytest.mark.parametrize(
    ("shape", "dtype", "block_size"),
    [
        *((shape, "bfloat16", 16) for shape in SHAPES),
        *(("gqa", dtype, 16) for dtype in ("float32", "float16", "fp8_e4m3", "int8", "int4")),
        *((shape, "bfloat16", size) for shape in ("gqa", "window") for size in (5, 32)),
        ("rope", "int8", 32),
        ("window", "int4", 5),
        ("head 128", "int4", 32),
    ],
)
def test_a_path_gets_the_bits_of_a_sequence(
    isa: str, threads: int, shape: str, dtype: str, block_size: int
) -> None:
    case = replace(SHAPES[shape], dtype=dtype, block_size=block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    attention = CpuAttention(case.spec, **case.parameters())
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    cache.native.memory[:] = 0xFF
    cache.native.scales[:] = 0xFF
    before = [(i, 0, known - own) for i, (known, own, _) in enumerate(TREES) if known > own]
    rows = rows_of(qkv, before)
    width = case.num_heads * case.head_dim
    attend(attention, rows, tables.step(before), cache, np.empty((len(rows), width), np.float32))
    step = tree_step(case, tables)
    rows = step_rows(case, step, qkv)
    got = attend(attention, rows, step, cache, np.empty((len(rows), width), np.float32))
    np.testing.assert_array_equal(got, np.concatenate(alone(case, qkv)))


@pytest.mark.parametrize("shape", ["gqa", "window", "chunk", "rope"])
def test_the_reference_gives_a_path_what_a_sequence_gets(shape: str) -> None:
    case = replace(SHAPES[shape], dtype="float32")
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    attention = ReferenceAttention(case.spec, **tensors(case.parameters()))
    cache = ReferenceKVCache(case.cache_spec, tables.num_blocks)
    width = case.num_heads * case.head_dim
    before = [(i, 0, known - own) for i, (known, own, _) in enumerate(TREES) if known > own]
    step = tree_step(case, tables)
    for batch, rows in (
        (tables.step(before), rows_of(qkv, before)),
        (step, step_rows(case, step, qkv)),
    ):
        out = torch.empty((len(rows), width))
        attend(attention, torch.from_numpy(rows), tensors(batch), cache, out)
    np.testing.assert_allclose(out.numpy(), np.concatenate(alone(case, qkv)), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_slots_are_copied_in_every_layer(dtype: str) -> None:
    """A tree's rows whose slots were copied to where a sequence has them are that sequence."""
    case = replace(SHAPES["gqa"], dtype=dtype)
    qkv = random_qkv(case, [12])
    tables = Tables(case, [40])
    attention = CpuAttention(case.spec, **case.parameters())
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    width = case.num_heads * case.head_dim
    slots, elsewhere = (
        tables.step([(0, start, start + 11)]).slot_mapping.tolist() for start in (0, 25)
    )
    whole = run_cpu(case, Tables(case, [12]), qkv, [[(0, 0, 12)]])[0]
    first = tables.step([(0, 0, 7)])
    attend(attention, qkv[0][:7].copy(), first, cache, np.empty((7, width), np.float32))
    rest = tables.step([(0, 7, 11)])
    rest.slot_mapping = np.array(elsewhere[7:])
    attend(attention, qkv[0][7:11].copy(), rest, cache, np.empty((4, width), np.float32))
    cache.copy_slots(list(zip(elsewhere[7:], slots[7:], strict=True)))
    out = np.empty((1, width), np.float32)
    attend(attention, qkv[0][11:].copy(), tables.step([(0, 11, 12)]), cache, out)
    np.testing.assert_array_equal(out[0], whole[11])
    reference = ReferenceKVCache(case.cache_spec, tables.num_blocks)
    k = torch.randn(1, case.num_kv_heads, case.head_dim)
    reference.write(0, torch.tensor([3]), k, k)
    reference.copy_slots([(3, 38)])
    want, got = reference.read(0, torch.tensor([3])), reference.read(0, torch.tensor([38]))
    assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1])
    with pytest.raises(ValueError, match="slots must lie inside the cache"):
        cache.copy_slots([(0, tables.num_blocks * case.block_size)])


@pytest.mark.parametrize("what", ["gap", "outside", "early", "long"])
def test_a_path_that_points_nowhere_is_refused(what: str) -> None:
    case = SHAPES["gqa"]
    tables = Tables(case, LENS)
    step = tree_step(case, tables)
    assert step.tree_slots is not None and step.tree_starts is not None
    if what == "gap":
        step.tree_slots[1, 0] = -1
    elif what == "outside":
        step.tree_slots[1, 0] = tables.num_blocks * case.block_size
    elif what == "early":
        step.tree_slots[0, 0] = 0  # a known token
    else:
        step.tree_starts[0] = 10_000
    attention = CpuAttention(case.spec, **case.parameters())
    with pytest.raises(UnsupportedInputError):
        attention.plan(step, CpuKVCache(case.cache_spec, tables.num_blocks))

"""The definition itself, against torch's own functions and against hand-made numbers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from quire.core.errors import UnsupportedInputError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.moe_config import ExpertRouting
from quire.kernels.backend import AttentionSpec
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.reference.backend import ReferenceBackend

torch.set_num_threads(1)
BACKEND = ReferenceBackend()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_norms_equal_torch():
    x, residual = torch.randn(5, 24), torch.randn(5, 24)
    weight, bias = torch.randn(24), torch.randn(24)
    out = torch.empty_like(x)
    torch.testing.assert_close(
        BACKEND.rms_norm(x, weight, 1e-5, out), F.rms_norm(x, (24,), weight, 1e-5)
    )
    expected = F.layer_norm(x + residual, (24,), weight, bias, 1e-5)
    summed = residual + x
    torch.testing.assert_close(BACKEND.layer_norm(x, weight, bias, 1e-5, out, residual), expected)
    assert torch.equal(residual, summed)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
def test_activations_equal_torch(name, function):
    x = torch.randn(3, 14) * 4
    torch.testing.assert_close(BACKEND.activation(x, name, torch.empty(3, 14)), function(x))
    torch.testing.assert_close(
        BACKEND.gated_activation(x, name, torch.empty(3, 7)), function(x[:, :7]) * x[:, 7:]
    )


def test_rows():
    table = torch.randn(6, 4)
    x = torch.randn(2, 4)
    rows = torch.tensor([5, 0], dtype=torch.int32)
    expected = x + table[[5, 0]]
    assert torch.equal(BACKEND.add_rows(x, table, rows), expected)
    assert torch.equal(BACKEND.gather_rows(table, rows, torch.empty(2, 4)), table[[5, 0]])
    with pytest.raises(UnsupportedInputError, match="rows must be in"):
        BACKEND.gather_rows(table, torch.tensor([6], dtype=torch.int32), torch.empty(1, 4))
    spread = BACKEND.spread_columns(
        x, torch.tensor([4, 0, 1, 2], dtype=torch.int32), torch.empty(2, 5)
    )
    assert torch.equal(spread[:, [4, 0, 1, 2]], x)
    assert bool((spread[:, 3] == -torch.inf).all())
    with pytest.raises(UnsupportedInputError, match="columns must be in"):
        BACKEND.spread_columns(x, torch.tensor([0, 1, 2, 5], dtype=torch.int32), torch.empty(2, 5))


def test_linear_stacks_and_rounds_its_weights():
    weights = [torch.randn(3, 8), torch.randn(2, 8)]
    bias = [torch.randn(3), torch.randn(2)]
    linear = BACKEND.linear(
        [HostTensor("w", "float32", w.numpy()) for w in weights],
        [HostTensor("b", "float32", b.numpy()) for b in bias],
        dtype="bfloat16",
    )
    x = torch.randn(4, 8)
    rounded = torch.cat(weights).bfloat16().float()
    torch.testing.assert_close(linear(x), x @ rounded.T + torch.cat(bias))
    assert torch.equal(linear(x)[1:2], linear(x[1:2]))
    assert torch.equal(linear.lookup(torch.tensor([4, 0])), rounded[[4, 0]])


@pytest.mark.parametrize(("num_kv_heads", "window"), [(4, None), (2, None), (1, None), (2, 5)])
def test_attention_equals_torch_dense_attention(num_kv_heads, window):
    """Two requests, one of them a chunk after cached tokens, in shuffled blocks."""
    heads, dim, block = 4, 8, 4
    spec = AttentionSpec(0, heads, num_kv_heads, dim, dim**-0.5, window)
    cache = BACKEND.kv_cache(KVCacheSpec(1, num_kv_heads, dim, block, "float32"), 9)
    attention = BACKEND.attention(spec)
    qkv = torch.randn(18, (heads + 2 * num_kv_heads) * dim)
    table = torch.tensor([[7, 2, 5], [3, 8, 0]], dtype=torch.int32)
    slots = [table[0, p // block] * block + p % block for p in range(11)]
    slots += [table[1, p // block] * block + p % block for p in range(7)]
    slots = torch.stack(slots).long()
    out = torch.empty(18, heads * dim)
    steps = (([0, 1, 2, 3, 4], [5]), ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [11, 7]))
    for rows, seq_lens in steps:
        starts = [0, len(rows)] if len(seq_lens) == 1 else [0, 6, 13]
        batch = ForwardBatch(
            input_ids=torch.zeros(0),
            positions=torch.tensor([r if r < 11 else r - 11 for r in rows], dtype=torch.int32),
            slot_mapping=slots[rows],
            block_tables=table[: len(seq_lens)],
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            logits_indices=torch.zeros(0),
        )
        step_out = torch.empty(len(rows), heads * dim)
        out[rows] = attention.run(qkv[rows].clone(), attention.plan(batch, cache), step_out)
    for start, length in ((0, 11), (11, 7)):
        q, k, v = (
            qkv[start : start + length]
            .view(length, -1, dim)
            .split([heads, num_kv_heads, num_kv_heads], dim=1)
        )
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if window is not None:
            mask &= ~torch.ones(length, length, dtype=torch.bool).tril(-window)
        expected = F.scaled_dot_product_attention(
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            attn_mask=mask,
            enable_gqa=True,
        )
        got = out[start : start + length].view(length, heads, dim).transpose(0, 1)
        torch.testing.assert_close(got, expected)


def test_rotation_keeps_scores_a_function_of_distance():
    """RoPE's defining property, with only part of the head rotated."""
    spec = AttentionSpec(0, 1, 1, 8, 1.0)
    angles = torch.outer(torch.arange(32.0), torch.tensor([1.0, 0.1, 0.01]))
    attention = BACKEND.attention(spec, rope=(angles.cos(), angles.sin()))
    q, k = torch.randn(8), torch.randn(8)
    scores = []
    for shift in (0, 9):
        cache = BACKEND.kv_cache(KVCacheSpec(1, 1, 8, 32, "float32"), 2)
        qkv = torch.cat([q, k, torch.zeros(8)]).repeat(2, 1)
        batch = ForwardBatch(
            torch.zeros(0),
            torch.tensor([shift, shift + 4], dtype=torch.int32),
            torch.tensor([32, 33]),
            torch.tensor([[1]], dtype=torch.int32),
            torch.tensor([0, 2], dtype=torch.int32),
            torch.tensor([2], dtype=torch.int32),
            torch.zeros(0),
        )
        attention.run(qkv, attention.plan(batch, cache), torch.empty(2, 8))
        scores.append(float(qkv[1, :8] @ qkv[0, 8:16]))
        assert torch.equal(qkv[1, 6:8], q[6:])
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert scores[0] != pytest.approx(float(q @ k), rel=1e-3)


def test_route_orders_and_renormalizes():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    ids, weights = BACKEND.route(logits, ExpertRouting(top_k=2))
    assert ids.tolist() == [[1, 2]]
    assert weights.tolist() == [[0.5, 0.5]]
    _, raw = BACKEND.route(logits, ExpertRouting(top_k=2, renormalize=False))
    assert float(raw[0, 0]) == pytest.approx(math.exp(3) / (2 * math.exp(3) + math.exp(1) + 1))


def test_copy_blocks_in_order():
    cache = BACKEND.kv_cache(KVCacheSpec(2, 1, 2, 2, "float16"), 4)
    cache.blocks[:] = torch.arange(4).view(1, 1, 4, 1, 1, 1)
    cache.copy_blocks([(3, 1), (1, 2)])
    assert cache.blocks[1, 1, :, 0, 0, 0].tolist() == [0, 3, 3, 3]


def test_an_uploaded_step_is_a_copy_and_keeps_what_is_missing():
    @dataclasses.dataclass
    class Step:
        ids: object
        vectors: object = None

    step = Step(np.arange(3, dtype=np.int32))
    uploaded = BACKEND.upload(step)
    step.ids[0] = 7
    assert uploaded.ids.tolist() == [0, 1, 2]
    assert uploaded.vectors is None

"""The caches before paging, against each other and against the paged one."""

from __future__ import annotations

import pytest
import torch

from quire.core.errors import CapacityError
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.attention_runs import random_qkv, run_reference
from tests.kernels.contiguous_cache import AppendingCache, ContiguousCache

K, H = 2, 8


def parts(*lengths: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(K, n, H, generator=generator), torch.randn(K, n, H, generator=generator))
        for n in lengths
    ]


def test_contiguous_equals_appending_with_lengths_per_sequence():
    contiguous = ContiguousCache(2, 16, K, H)
    appending = [AppendingCache(K, H), AppendingCache(K, H)]
    for sequence, (k, v) in zip((0, 1, 0, 0), parts(5, 3, 1, 2), strict=True):
        held = contiguous.update(sequence, k, v)
        wanted = appending[sequence].update(k, v)
        assert torch.equal(held[0], wanted[0]) and torch.equal(held[1], wanted[1])
    assert contiguous.lengths == [8, 3]


def test_overflow_is_a_typed_error_and_stores_nothing():
    cache = ContiguousCache(1, 4, K, H)
    (first, second) = parts(3, 2)
    cache.update(0, *first)
    with pytest.raises(CapacityError, match="4 tokens; got 5"):
        cache.update(0, *second)
    assert cache.lengths == [3]
    assert not cache.keys[0, :, 3:].any()


def test_reset_makes_it_usable_again():
    cache = ContiguousCache(1, 4, K, H)
    first, second = parts(4, 4)
    cache.update(0, *first)
    cache.reset()
    keys, values = cache.update(0, *second)
    assert torch.equal(keys, second[0]) and torch.equal(values, second[1])


def test_attention_over_it_equals_paged_attention():
    case = Case()
    length = 21
    qkv = random_qkv(case, [length])
    steps = [[(0, at, at + 1)] for at in range(length)]
    (paged,) = run_reference(case, Tables(case, [length]), qkv, steps)
    cache = ContiguousCache(1, length, case.num_kv_heads, case.head_dim)
    heads = torch.from_numpy(qkv[0]).view(length, -1, case.head_dim)
    q, k, v = heads.split([case.num_heads, case.num_kv_heads, case.num_kv_heads], dim=1)
    group = case.num_heads // case.num_kv_heads
    for at in range(length):
        keys, values = cache.update(
            0, k[at : at + 1].transpose(0, 1), v[at : at + 1].transpose(0, 1)
        )
        scores = torch.einsum("nh,nsh->ns", q[at], keys.repeat_interleave(group, 0))
        weights = torch.softmax(scores * case.spec.scale, dim=-1)
        out = torch.einsum("ns,nsh->nh", weights, values.repeat_interleave(group, 0))
        assert torch.allclose(out.flatten(), torch.from_numpy(paged[at]), rtol=1e-5, atol=1e-6)

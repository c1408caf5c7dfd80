"""Attention's options: soft caps, sinks, norms of queries and keys, positions ahead."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import AttentionSpec, QKNorm
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.reference.attention import attend as attend_densely
from tests.kernels.attention_cases import SHAPES, Case, Tables
from tests.kernels.attention_runs import random_qkv, run_cpu, run_reference
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.paired_attention import PAIR_ISAS

torch.set_num_threads(1)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")
DTYPES = ["float32", "float16", "bfloat16", "fp8_e4m3", "int8", "int4"]
LENS = [1, 40, 300]
#: A prompt, a chunk after it, and tokens one by one.
STEPS = [
    [(0, 0, 1), (1, 0, 20), (2, 0, 297)],
    [(1, 20, 40), (2, 297, 298)],
    [(2, 298, 299)],
    [(2, 299, 300)],
]
BENT = Case(num_heads=6, num_kv_heads=2, score_cap=1.2, sinks=True, window=270)


@pytest.mark.parametrize("dtype", DTYPES)
def test_caps_and_sinks_equal_the_reference(isa: str, dtype: str) -> None:
    case = replace(BENT, dtype=dtype)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    ours = run_cpu(case, tables, qkv, STEPS)
    atol = 1e-2 if dtype == "bfloat16" and isa in PAIR_ISAS else 1e-5
    for got, want in zip(ours, run_reference(case, tables, qkv, STEPS), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    for option in ({"score_cap": None}, {"sinks": False}):
        other = run_cpu(replace(case, **option), tables, qkv, STEPS)
        assert np.abs(other[2] - ours[2]).max() > 10 * atol


def test_the_reference_bends_scores_as_gemma_2_does() -> None:
    gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    q, k, v, mask, biases = _dense_inputs()
    spec = AttentionSpec(0, 6, 2, 16, 0.7, score_cap=3.0)
    got = attend_densely(q, k, v, mask, spec, None)
    module = SimpleNamespace(num_key_value_groups=3, training=False)
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    want, _ = gemma2.eager_attention_forward(module, *heads, biases, scaling=0.7, softcap=3.0)
    torch.testing.assert_close(got, want[0], atol=1e-6, rtol=1e-5)


def test_the_reference_has_the_sinks_of_gpt_oss() -> None:
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    q, k, v, mask, biases = _dense_inputs()
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0, 5.0, -40.0])
    got = attend_densely(q, k, v, mask, AttentionSpec(0, 6, 2, 16, 0.7), sinks)
    module = SimpleNamespace(num_key_value_groups=3, training=False, sinks=sinks)
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    want, _ = gpt_oss.eager_attention_forward(module, *heads, biases, scaling=0.7)
    torch.testing.assert_close(got, want[0], atol=1e-6, rtol=1e-5)


def _dense_inputs() -> tuple[torch.Tensor, ...]:
    """Return queries, keys, values, which are seen, and the same as what scores are added to."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(9, 6, 16, generator=generator)
    k, v = torch.randn(2, 9, 2, 16, generator=generator)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    return q, k, v, mask, torch.zeros(9, 9).masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sinks_from_nothing_to_all(isa: str, dtype: str) -> None:
    """A sink that no score comes near takes all; one far below every score takes nothing."""
    case = replace(BENT, sinks=True, score_cap=None, dtype=dtype)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    plain = run_cpu(replace(case, sinks=False), tables, qkv, STEPS)

    def run_with(sink: float) -> list[np.ndarray]:
        class WithSink(Case):
            def parameters(self, max_positions: int = 4096) -> dict[str, object]:
                return {"sinks": np.full(self.num_heads, sink, np.float32)}

        fields = {name: getattr(case, name) for name in Case.__dataclass_fields__}
        return run_cpu(WithSink(**fields), tables, qkv, STEPS)

    for sink in (-1e30, -np.inf):
        for got, want in zip(run_with(sink), plain, strict=True):
            np.testing.assert_array_equal(got, want)
    assert not any(rows.any() for rows in run_with(1e30))
    # As large as the highest score: half of what there is, where there is one position.
    alone = run_with(0.0)[0], plain[0]
    assert 0 < np.abs(alone[0]).max() < np.abs(alone[1]).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms_of_rows", "layer_of_heads"])
def test_bits_of_all_options_do_not_depend_on_chunks(isa: str, kind: str, dtype: str) -> None:
    case = replace(BENT, qk_norm=kind, rotary_dim=32, dtype=dtype)
    qkv = random_qkv(case, LENS)
    whole = [[(row, 0, length) for row, length in enumerate(LENS)]]
    want = run_cpu(case, Tables(case, LENS), qkv, whole)
    for block_size in (16, 5):
        sized = replace(case, block_size=block_size)
        got = run_cpu(sized, Tables(sized, LENS, block_size), qkv, STEPS)
        for mine, rows in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, rows)


def test_a_split_decode_counts_its_sink_once(threads: int) -> None:
    """Pieces side by side on all threads, against a prefill's, which come in turn."""
    case = Case(num_heads=4, num_kv_heads=1, head_dim=64, dtype="bfloat16", sinks=True)
    tables, qkv = Tables(case, [3001]), random_qkv(case, [3001])
    prefill = run_cpu(case, tables, qkv, [[(0, 0, 3001)]])[0]
    decode = run_cpu(case, tables, qkv, [[(0, 0, 3000)], [(0, 3000, 3001)]])[0]
    np.testing.assert_array_equal(decode, prefill)


@pytest.mark.parametrize("kind", ["rms_of_rows", "layer_of_heads"])
def test_norms_keep_far_rows_exact(isa: str, kind: str) -> None:
    """Rows far from 0, of which a variance from squares alone would be lost."""
    case = Case(num_heads=5, num_kv_heads=1, head_dim=20, qk_norm=kind)
    tables, qkv = Tables(case, [30]), random_qkv(case, [30])
    qkv[0][:, :-20] += 100
    got = run_cpu(case, tables, qkv, [[(0, 0, 30)]])[0]
    wide = [rows.astype(np.float64) for rows in qkv]
    q, k, v = np.split(wide[0].reshape(30, 7, 20), [5, 6], axis=1)
    norm = case.parameters()["qk_norm"]
    q, k = _normalized(q, norm.queries, kind), _normalized(k, norm.keys, kind)
    scores = np.einsum("tnh,sh->nts", q, k[:, 0]) * case.spec.scale
    scores += np.where(np.tri(30, dtype=bool), 0, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("nts,sh->tnh", weights, v[:, 0]).reshape(30, -1)
    np.testing.assert_allclose(got, want, atol=3e-5)


def _normalized(x: np.ndarray, weight: np.ndarray, kind: str) -> np.ndarray:
    """Return the norm of (T, heads, H) in float64, by its definition."""
    if kind == "rms_of_rows":
        squares = (x * x).mean((1, 2), keepdims=True)
        return x / np.sqrt(squares + 1e-6) * weight.reshape(x.shape[1:])
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * weight


@pytest.mark.parametrize(
    ("window", "ahead", "dtype"),
    [
        (None, None, "float32"),
        (None, None, "bfloat16"),
        (None, 3, "float32"),
        (65, 64, "float32"),
        (65, 64, "int8"),
        (300, 299, "bfloat16"),
    ],
)
def test_positions_ahead_equal_the_reference(
    isa: str, window: int | None, ahead: int | None, dtype: str
) -> None:
    """Whole requests of all lengths in one step, and each alone, which changes no bit."""
    case = Case(window=window, ahead=ahead, dtype=dtype)
    lens = [1, 2, 17, 255, 257, 530]
    tables, qkv = Tables(case, lens), random_qkv(case, lens)
    parts = [(row, 0, length) for row, length in enumerate(lens)]
    ours = run_cpu(case, tables, qkv, [parts])
    atol = 1e-2 if dtype == "bfloat16" and isa in PAIR_ISAS else 1e-5
    for got, want in zip(ours, run_reference(case, tables, qkv, [parts]), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    for part in parts:
        alone = run_cpu(case, tables, qkv, [[part]])
        np.testing.assert_array_equal(alone[part[0]], ours[part[0]])


def test_the_reference_sees_all_of_a_request_and_windows_on_both_sides() -> None:
    lens = [12]
    qkv = random_qkv(Case(), lens)
    heads = torch.from_numpy(qkv[0]).view(12, 8, 32)
    q, k, v = (x.transpose(0, 1) for x in heads.split([4, 2, 2], dim=1))
    distance = torch.arange(12)[:, None] - torch.arange(12)
    masks = {(None, None): distance > -99, (4, 3): distance.abs() < 4}
    for (window, ahead), mask in masks.items():
        case = Case(window=window, ahead=ahead)
        got = run_reference(case, Tables(case, lens), qkv, [[(0, 0, 12)]])[0]
        want = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=True
        )
        np.testing.assert_allclose(got, want.transpose(0, 1).reshape(12, -1), atol=1e-5)


def test_a_layer_that_sees_ahead_refuses_parts_of_a_request() -> None:
    case = Case(ahead=None)
    tables = Tables(case, [20])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attention = CpuAttention(case.spec, **case.parameters())
    attention.plan(tables.step([(0, 0, 7)]), cache)
    with pytest.raises(UnsupportedInputError, match=r"whole requests.*got \[13\] queries of"):
        attention.plan(tables.step([(0, 7, 20)]), cache)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("window", [None, 60])
def test_rows_that_see_later_ones_equal_the_reference(
    isa: str, window: int | None, dtype: str
) -> None:
    """Spans whose rows see all of them, in whole requests and in parts that end after a span."""
    case = Case(window=window, dtype=dtype, num_heads=6)
    lens = [300, 41]
    tables, qkv = Tables(case, lens), random_qkv(case, lens)
    tables.last_seen = np.arange(300, dtype=np.int32)
    for start, stop in [(3, 20), (20, 40), (240, 290)]:
        tables.last_seen[start:stop] = stop - 1
    parts = [(row, 0, length) for row, length in enumerate(lens)]
    ours = run_cpu(case, tables, qkv, [parts])
    atol = 1e-2 if dtype == "bfloat16" and isa in PAIR_ISAS else 1e-5
    for got, want in zip(ours, run_reference(case, tables, qkv, [parts]), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    steps = [[(1, 0, 20), (0, 0, 3)], [(0, 3, 239), (1, 20, 41)], [(0, 239, 290)], [(0, 290, 300)]]
    for got, want in zip(run_cpu(case, tables, qkv, steps), ours, strict=True):
        np.testing.assert_array_equal(got, want)
    tables.last_seen = None
    plain = run_cpu(case, tables, qkv, [parts])[0]
    np.testing.assert_array_equal(plain[:3], ours[0][:3])
    assert not np.allclose(plain[3:19], ours[0][3:19])


def test_last_positions_that_fall_are_refused() -> None:
    case = Case()
    tables = Tables(case, [20])
    tables.last_seen = np.arange(20, dtype=np.int32)[::-1].copy()
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attention = CpuAttention(case.spec, **case.parameters())
    with pytest.raises(UnsupportedInputError, match="last_seen must not fall"):
        attention.plan(tables.step([(0, 0, 20)]), cache)


def test_options_that_do_not_fit_are_refused() -> None:
    spec = SHAPES["gqa"].spec
    for cap in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(UnsupportedInputError, match="score_cap must be"):
            CpuAttention(replace(spec, score_cap=cap))
    with pytest.raises(UnsupportedInputError, match="chunk must be at least 1; got 0"):
        CpuAttention(replace(spec, chunk=0))
    turned = replace(SHAPES["rope"], scaled=True).parameters()
    with pytest.raises(UnsupportedInputError, match=r"the 4096 positions of rope; got 9"):
        CpuAttention(spec, **turned | {"query_scales": np.ones(9, np.float32)})
    with pytest.raises(UnsupportedInputError, match="ahead must be"):
        CpuAttention(replace(spec, ahead=-1))
    with pytest.raises(UnsupportedInputError, match=r"sinks must have shape \(4,\); got \(2,\)"):
        CpuAttention(spec, sinks=np.zeros(2, np.float32))
    weights = np.ones(32, np.float32), np.ones(32, np.float32)
    with pytest.raises(UnsupportedInputError, match="must be one of rms_of_heads"):
        CpuAttention(spec, qk_norm=QKNorm("rms", *weights, 1e-6))
    for kind, shapes in (("rms_of_rows", r"\(128,\), \(64,\)"), ("layer_of_heads", r"\(4, 32\)")):
        with pytest.raises(UnsupportedInputError, match=rf"{kind} must be \[{shapes}"):
            CpuAttention(spec, qk_norm=QKNorm(kind, *weights, 1e-6))

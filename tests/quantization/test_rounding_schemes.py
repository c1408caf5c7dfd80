"""Rounding to the nearest code: errors of at most half a step, and what each scheme costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.rounding_schemes import NF4, RoundingScheme, create_scheme, quantize
from tests.quantization.plain_rounding import plainly_quantized


def gaussian(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def rounded(values: np.ndarray, scheme: RoundingScheme) -> QuantizedTensor:
    return quantize(HostTensor("w", "float32", values), scheme)


def spread(groups: np.ndarray, tensor: QuantizedTensor) -> np.ndarray:
    """Repeat (N, G) over the columns, float64."""
    return np.repeat(groups.astype(np.float64), tensor.group_size, axis=1)[:, : tensor.shape[1]]


MATRICES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 70)),
    elements=st.floats(-1e4, 1e4, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0),
)


@given(
    MATRICES,
    st.sampled_from([2, 3, 4, 5, 6, 8]),
    st.sampled_from([0, 16, 32, 128]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_errors_are_at_most_half_a_step_inside_the_range(
    values: np.ndarray, bits: int, group_size: int, symmetric: bool
) -> None:
    """Scale, zero point, round, clamp, dequantize; both kinds."""
    tensor = rounded(values, RoundingScheme(bits, group_size, symmetric))
    scale = spread(tensor.scales, tensor)
    offset = 0 if tensor.offsets is None else spread(tensor.offsets, tensor)
    ends = [offset + scale * (code - tensor.zero) for code in (0, (1 << bits) - 1)]
    inside = (values >= np.minimum(*ends)) & (values <= np.maximum(*ends))
    error = np.abs(tensor.float32().astype(np.float64) - values)
    slack = 1e-5 * (np.abs(values) + np.abs(offset))
    assert (error[inside] <= (np.abs(scale) / 2 + slack)[inside]).all()
    nearest = np.minimum(np.abs(ends[0] - values), np.abs(ends[1] - values))
    assert (error[~inside] <= (nearest + np.abs(scale) / 2 + slack)[~inside]).all()


def test_int8_rows_are_within_one_percent() -> None:
    """Scale = max|w| / 127; relative error below 1% of a row of Gaussian weights."""
    values = gaussian(50, 512)
    tensor = rounded(values, create_scheme("int8", 0))
    np.testing.assert_allclose(tensor.scales[:, 0], np.abs(values).max(axis=1) / 127, rtol=1e-3)
    error = np.linalg.norm(tensor.float32() - values, axis=1) / np.linalg.norm(values, axis=1)
    assert error.max() < 0.01


def test_groups_of_128_err_less_than_rows() -> None:
    """Computed 0.56 on rows of 4,096."""
    values = gaussian(50, 4096)

    def error(group_size: int) -> float:
        tensor = rounded(values, create_scheme("int4", group_size))
        return float(np.square(tensor.float32() - values).mean())

    assert error(128) <= 0.65 * error(0)


def test_nf4_is_better_than_int4_without_its_lowest_code() -> None:
    """Computed on N(0, 1) in blocks of 64: 0.0085 against 0.0117 of absmax int4."""
    assert (NF4[0], NF4[7], NF4[-1]) == (-1, 0, 1)
    values = gaussian(200, 4096)
    error = np.square(rounded(values, create_scheme("nf4")).float32() - values).mean()
    assert error == pytest.approx(0.0085, rel=0.05)
    blocks = values.reshape(-1, 64)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 7
    assert error < np.square(np.rint(blocks / scales) * scales - blocks).mean()


def test_zeros_stay_zeros_and_tiny_weights_keep_float32_scales() -> None:
    for name in ("int8", "int4", "nf4", "int2"):
        assert not rounded(np.zeros((2, 40), np.float32), create_scheme(name)).float32().any()
        tensor = rounded(gaussian(3, 64) * np.float32(1e-9), create_scheme(name))
        assert tensor.scales.dtype == np.float32
        assert np.abs(tensor.float32()).max() > 1e-9


@pytest.mark.parametrize("name", ["int8", "int4", "nf4", "int2"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(name: str, value: float) -> None:
    """It was rounded to whatever the processor makes of it, with warnings of numpy's."""
    values = gaussian(3, 64)
    values[1, 40] = value
    with pytest.raises(ModelLoadError, match="must be finite to be quantized"):
        rounded(values, create_scheme(name))


def test_bfloat16_weights_and_pieces() -> None:
    values = gaussian(70, 4096)
    values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    whole = quantize(HostTensor("w", "bfloat16", bits), create_scheme("int4"))
    one = rounded(values[33:34], create_scheme("int4"))
    np.testing.assert_array_equal(whole.codes[33:34], one.codes)
    np.testing.assert_array_equal(whole.scales[33:34], one.scales)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("name", "group_size"),
    [("int8", 32), ("int8", 0), ("int6", 128), ("int4", 32), ("int4", 256), ("nf4", 64),
     ("int3", 32), ("int2", 16)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(1200, 2048), (3, 40), (300, 1000)])
def test_threads_and_turned_groups_give_the_plain_roundings_bits(
    shape: tuple[int, int], name: str, group_size: int, threads: int
) -> None:
    """Also where scales of some rows are too small for float16: they alone keep float32."""
    for smallest in (1.0, 1e-7):
        values = gaussian(*shape) * np.geomspace(1, smallest, shape[0], dtype=np.float32)[:, None]
        values[:, 5:50:7] = 0
        values[-1] = 0
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        scheme = create_scheme(name, group_size)
        for tensor in (HostTensor("w", "bfloat16", bits), HostTensor("w", "float32", values)):
            wanted, found = plainly_quantized(tensor, scheme), quantize(tensor, scheme, threads)
            np.testing.assert_array_equal(found.codes, wanted.codes)
            assert found.scales.dtype == wanted.scales.dtype
            assert found.scales.tobytes() == wanted.scales.tobytes()
            if wanted.offsets is not None and found.offsets is not None:
                assert found.offsets.tobytes() == wanted.offsets.tobytes()
            assert (found.offsets is None) == (wanted.offsets is None)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bad_weight_in_any_piece_is_refused(threads: int) -> None:
    values = gaussian(1200, 2048)
    values[-1, -1] = np.inf
    with pytest.raises(ModelLoadError, match="must be finite"):
        quantize(HostTensor("w", "float32", values), create_scheme("int8"), threads)


def test_schemes() -> None:
    assert create_scheme("int4") == RoundingScheme(4, 32)
    assert create_scheme("int2", 16) == RoundingScheme(2, 16, symmetric=False)
    assert create_scheme("nf4").group_size == 64

"""Linears in matrix tiles: the bits of vectors, and for bfloat16 those that the manual defines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from tests.kernels.bfloat16 import brain, flushed, fused
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import random_quantized

ISAS = [isa for isa in ALL_ISAS if isa.startswith("amx")]
if not ISAS:
    pytest.skip("emulated tiles need AVX512-VNNI", allow_module_level=True)
TILES, VECTORS = 1, 1 << 40
MANY = 40
#: bits, group size, offsets, code book; a group of 0 is the whole of a row.
KINDS = [
    (8, 16, False, False),
    (8, 32, False, False),
    (8, 64, True, False),
    (8, 128, False, False),
    (8, 256, True, False),
    (8, 0, False, False),
    (4, 16, True, False),
    (4, 32, False, False),
    (4, 32, True, False),
    (4, 32, False, True),
    (4, 64, False, False),
    (4, 128, True, False),
    (4, 256, False, False),
    (4, 0, False, False),
    (6, 16, False, False),
    (5, 64, True, False),
    (3, 256, False, False),
    (2, 16, True, False),
]


@pytest.fixture(autouse=True)
def rows_put_back() -> Iterator[None]:
    before = native.matrix_rows()
    yield
    native.set_matrix_rows(*before)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def take_tiles_from(rows: int) -> None:
    native.set_matrix_rows([rows] * len(native.matrix_rows()[0]), rows)


def products(layer: CpuLinear, x: np.ndarray, rows_for_tiles: int) -> list[np.ndarray]:
    """Multiply the first 1 .. MANY rows, in tiles where there are ``rows_for_tiles``."""
    take_tiles_from(rows_for_tiles)
    return [layer(x[:rows]) for rows in range(1, MANY + 1)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(40, 33), (1300, 70)])
def test_quantized_products_are_those_of_vectors(
    isa: str, kind: tuple[int, int, bool, bool], inputs: int, outputs: int
) -> None:
    bits, group, offsets, book = kind
    group = group or -(-inputs // 32) * 32
    layer = CpuLinear([random_quantized(outputs, inputs, bits, group, offsets, book)])
    x = normal(MANY, inputs) * np.logspace(-15, 15, MANY, dtype=np.float32)[:, None]
    x[3] = 0
    native.set_isa("avx512vnni")
    want = layer(x)
    native.set_isa(isa)
    for rows, got in enumerate(products(layer, x, TILES), 1):
        assert got.tobytes() == want[:rows].tobytes()
    assert layer(np.tile(x, (8, 1))).tobytes() == np.tile(want, (8, 1)).tobytes()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kind", [(8, 16), (8, 32), (4, 64), (4, 128)], ids=str)
def test_the_largest_products_are_exact(isa: str, kind: tuple[int, int], sign: int) -> None:
    """Sums of a burst are floats only while they are below 2 ** 22."""
    bits, group = kind
    weight = random_quantized(32, 512, bits, group, offsets=False, book=bits == 4)
    weight.codes[:] = 0  # -128, of the code book -127
    weight.codes[1] = (1 << bits) - 1
    layer = CpuLinear([weight])
    x = np.full((MANY, 512), sign, np.float32)
    tiles, vectors = products(layer, x, TILES), products(layer, x, VECTORS)
    assert np.abs(vectors[-1]).min() > 0
    for got, want in zip(tiles, vectors, strict=True):
        assert got.tobytes() == want.tobytes()


def test_codes_that_do_not_fit_a_signed_byte_go_without_tiles(isa: str) -> None:
    weight = random_quantized(70, 96, 8, 32, False, False)
    shifted = CpuLinear([type(weight)(**{**fields(weight), "zero": 100})])
    x = normal(MANY, 96)
    for tiles, vectors in zip(
        products(shifted, x, TILES), products(shifted, x, VECTORS), strict=True
    ):
        np.testing.assert_array_equal(tiles, vectors)


def fields(weight: object) -> dict[str, object]:
    names = ("name", "bits", "group_size", "codes", "scales", "zero", "offsets", "code_book")
    return {name: getattr(weight, name) for name in names}


def brain_layer(weight: np.ndarray) -> CpuLinear:
    raw = (brain(weight).view(np.uint32) >> 16).astype(np.uint16)
    return CpuLinear([HostTensor("w", "bfloat16", raw)], [], "bfloat16")


def simulate(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Multiply as TDPBF16PS does, 32 inputs at a time, and blocks of 512 inputs apart."""
    inputs = -(-x.shape[1] // 32) * 32
    x = flushed(np.pad(brain(x), ((0, 0), (0, inputs - x.shape[1]))))
    weight = flushed(np.pad(brain(weight), ((0, 0), (0, inputs - weight.shape[1]))))

    total = np.zeros((len(x), len(weight)), np.float32)
    for block in range(0, inputs, 512):
        sums = np.zeros_like(total)
        for first in range(block, min(block + 512, inputs), 32):
            even, odd = np.zeros_like(total), np.zeros_like(total)
            for k in range(first, first + 32, 2):
                even = fused(x[:, k, None], weight[:, k], even)
                odd = fused(x[:, k + 1, None], weight[:, k + 1], odd)
            sums = flushed(sums + flushed(even + odd))
        total = sums if block == 0 else flushed(total + sums)
    return total


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (40, 33), (1300, 70)])
@pytest.mark.parametrize("power", [0, -18], ids=["usual", "denormal"])
def test_bfloat16_products_are_those_of_the_manual(
    isa: str, inputs: int, outputs: int, power: int
) -> None:
    scale = np.float32(10.0) ** np.random.default_rng(7).uniform(power - 2, power, (MANY, 1))
    x = (normal(MANY, inputs) * scale).astype(np.float32)
    weight = normal(outputs, inputs, seed=1) * np.float32(10.0) ** np.float32(power)
    weight[0] *= np.float32(1e-21)  # denormal where power is small
    layer, want = brain_layer(weight), simulate(x, weight)
    if power < 0:
        assert (want == 0).any()
    for rows_for_tiles in (TILES, VECTORS):
        for rows, got in enumerate(products(layer, x, rows_for_tiles), 1):
            np.testing.assert_array_equal(got, want[:rows])


def test_the_bits_of_bfloat16_do_not_depend_on_the_rows_for_tiles(isa: str) -> None:
    x, layer = normal(700, 600), brain_layer(normal(230, 600, seed=1))
    take_tiles_from(TILES)
    want = layer(x)
    for rows_for_tiles in (2, 4, 17, 33, VECTORS):
        for rows, got in enumerate(products(layer, x, rows_for_tiles), 1):
            assert got.tobytes() == want[:rows].tobytes()
    for isa in ISAS:
        native.set_isa(isa)
        assert layer(x).tobytes() == want.tobytes()


def test_denormals_are_flushed_in_these_products_only(isa: str) -> None:
    """The processor's mode is put back: floats multiply to denormals as before."""
    tiny = np.float32([[1e-30]])
    brain_layer(tiny)(np.repeat(tiny, 20, axis=0))
    layer = CpuLinear([HostTensor("w", "float32", np.float32([[1e-10]]))], [], "float32")
    assert 0 < layer(tiny)[0, 0] < np.finfo(np.float32).tiny

"""Same request, same tokens, bit for bit: the lattice of ``benchmarks/equality.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.equality import all_conditions, check_lattice
from quire.store.hub import resolve_model
from tests.covering import cover
from tests.integration.conftest import FAMILIES, lattice, turns
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

EMBEDDED = ["quire-tiny", "quire-tiny-vision"]


@pytest.fixture
def native(device: str) -> str:
    """The promise is the CPU's; torch, which the reference stands on, makes none."""
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    return device


@pytest.mark.usefixtures("long_answers")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_of_each_family(
    checkpoint: Callable[..., Path], native: str, family: str
) -> None:
    outcomes = check_lattice(checkpoint(family), turns(FAMILIES.index(family), 4), device=native)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_and_cache_of_16_bits(
    checkpoint: Callable[..., Path], native: str, dtype: str
) -> None:
    outcomes = check_lattice(checkpoint(), lattice(), device=native, dtype=dtype)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_a_cache_of_8_bits(
    checkpoint: Callable[..., Path], native: str, kv_cache_dtype: str, block_size: int
) -> None:
    settings = {"kv_cache_dtype": kv_cache_dtype, "block_size": block_size}
    outcomes = check_lattice(checkpoint(), lattice(), device=native, **settings)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mistral"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_a_cache_of_4_bits(tmp_path: Path, native: str, family: str, block_size: int) -> None:
    """Heads of a whole group; with a window blocks are given back, too."""
    random_checkpoint(tmp_path, {**PRESETS[family], "head_dim": 32})
    settings = {"kv_cache_dtype": "int4", "block_size": block_size}
    outcomes = check_lattice(tmp_path, lattice(), device=native, **settings)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.usefixtures("long_answers")
@pytest.mark.parametrize("model", EMBEDDED)
def test_embedded_models(native: str, model: str) -> None:
    outcomes = check_lattice(resolve_model(model), turns(EMBEDDED.index(model), 4), device=native)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


def test_the_whole_lattice(checkpoint: Callable[..., Path], native: str) -> None:
    conditions = all_conditions()
    assert len(conditions) == 144
    rows = [asdict(condition) for condition in conditions]
    kept = sized(cover("the whole lattice", rows), range(len(rows)))
    outcomes = check_lattice(checkpoint(), [conditions[i] for i in kept], device=native)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mixtral"])
@pytest.mark.parametrize("settings", [{"quantization": "int8"}, {"quantization": "int4"}], ids=str)
def test_quantized_weights(
    checkpoint: Callable[..., Path], native: str, family: str, settings: dict[str, str]
) -> None:
    outcomes = check_lattice(checkpoint(family), lattice(), device=native, **settings)
    assert {o.condition.name: o.failures for o in outcomes if o.failures} == {}

"""SqueezeLLM's layout: what is read, literally; what is written; what is refused, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import ConfigError, ModelLoadError, WeightMismatchError
from quire.quantizing.produce import LinkedMatrices, produce
from quire.quantizing.scheme import create_scheme
from quire.quantizing.stored_format import FORMATS
from tests.checkpoints.formats.test_formats import bit_string, read
from tests.checkpoints.formats.test_stored_layouts import MODULE, read_back

ROWS, COLUMNS = 40, 96


def parts(bits: int, sparse: bool = True) -> dict[str, np.ndarray]:
    random = np.random.default_rng(bits)
    made = {
        "qweight": random.integers(-(2**31), 2**31, (COLUMNS * bits // 32, ROWS), np.int32),
        "lookup_table": random.standard_normal((ROWS, 1 << bits)).astype(np.float32),
    }
    if not sparse:
        return made
    counts = random.integers(0, 4, ROWS)
    inputs = random.integers(0, COLUMNS, counts.sum()).astype(np.int32)
    return made | {
        "rows": np.concatenate([[0], counts.cumsum()]).astype(np.int32),
        "cols": inputs,
        "vals": random.standard_normal(len(inputs)).astype(np.float32),
        "full_rows": random.standard_normal((COLUMNS, 2)).astype(np.float32),
        "full_row_indices": np.array([33, 7], np.int32),
    }


def tensors_of(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("sparse", [False, True])
def test_values_by_a_literal_reading(tmp_path: Path, bits: int, sparse: bool) -> None:
    arrays = parts(bits, sparse)
    settings = {"quant_method": "squeezellm", "wbits": bits}
    got = read(tmp_path, settings, tensors_of(arrays)).float32()
    for n in range(ROWS):
        codes = bit_string(arrays["qweight"][:, n], bits, COLUMNS)
        want = np.array([arrays["lookup_table"][n, code] for code in codes])
        if sparse:
            for i in range(*arrays["rows"][n : n + 2]):
                want[arrays["cols"][i]] += arrays["vals"][i]
            for place, row in enumerate(arrays["full_row_indices"]):
                want += arrays["full_rows"][:, place] if row == n else 0
        np.testing.assert_array_equal(got[n], want)


def test_the_file_of_settings_that_its_program_writes(tmp_path: Path) -> None:
    """It has the name of AWQ's and nothing but the bits."""
    got = read(tmp_path, {"wbits": 4}, tensors_of(parts(4)), extra="quant_config.json")
    assert got.bits == 4 and got.tables is not None


@pytest.mark.parametrize("method", ["squeezellm", "kmeans"])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("share", [0.0, 0.0045])
def test_what_is_written_is_read(tmp_path: Path, method: str, bits: int, share: float) -> None:
    """More rows than are clustered at a time, on two threads."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((1100, 64)).astype(np.float32) for _ in range(2)]
    inputs = random.standard_normal((128, 64)) * np.arange(1, 65)
    scheme = create_scheme(method, {"bits": bits, "sparse": share})
    linked = LinkedMatrices(scheme, [MODULE, "other"], weights, inputs.T @ inputs, 2)
    made, other = produce(linked)
    assert (made.outliers is None) == (share == 0) and made.name == f"{MODULE}.weight"
    if made.outliers is not None:
        assert made.outliers.count == round(share * weights[0].size)
    got = read_back(tmp_path, scheme, "squeezellm", made)
    assert got.form == made.form
    np.testing.assert_array_equal(got.float32(), made.float32())
    assert np.square(other.float32() - weights[1]).mean() < (0.05 if bits == 3 else 0.015)


def changed(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., None]:
    def apply(arrays: dict[str, np.ndarray]) -> None:
        arrays[part] = change(arrays[part])

    return apply


def with_nan(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[3] = np.nan
    return values


def without(part: str) -> Callable[[dict[str, np.ndarray]], None]:
    def apply(arrays: dict[str, np.ndarray]) -> None:
        del arrays[part]

    return apply


BROKEN: dict[str, tuple[Callable[[dict[str, np.ndarray]], None], str]] = {
    "no codes": (without("qweight"), "must have qweight"),
    "transposed": (changed("qweight", np.transpose), "lookup_table must have shape|qweight must"),
    "cut off": (changed("qweight", lambda a: a[:-1]), "qweight must be .words, N. of 3-bit"),
    "other type": (changed("qweight", lambda a: a.view(np.float32)), "qweight must be one of I32"),
    "tables of 4 bits": (
        changed("lookup_table", lambda a: a.repeat(2, 1)),
        "lookup_table must have shape .40, 8.",
    ),
    "tables turned": (changed("lookup_table", np.transpose), "lookup_table must have shape"),
    "tables NaN": (changed("lookup_table", with_nan), "lookup_table must be finite"),
    "no rows": (without("rows"), "must have rows"),
    "no cols": (without("cols"), "must have cols"),
    "no vals": (without("vals"), "must have vals"),
    "rows cut": (changed("rows", lambda a: a[:-1]), "rows must have shape .41,."),
    "rows fall": (changed("rows", lambda a: a[::-1]), "rows must go up from 0"),
    "rows wrap": (
        changed("rows", lambda a: np.where(np.arange(41) == 3, 2**31 - 1, a).astype(np.int32)),
        "rows must go up from 0",
    ),
    "cols beyond": (changed("cols", lambda a: a + COLUMNS - a.max()), "cols must be inputs 0..95"),
    "cols below": (changed("cols", lambda a: a - a.min() - 1), "cols must be inputs 0..95"),
    "cols short": (changed("cols", lambda a: a[1:]), "cols must have shape"),
    "vals NaN": (changed("vals", with_nan), "vals must be finite"),
    "vals square": (changed("vals", lambda a: a[:, None]), "vals must be .count,."),
    "full rows turned": (changed("full_rows", np.transpose), "full_rows must be .96, rows."),
    "full rows nowhere": (without("full_row_indices"), "must have full_row_indices"),
    "full rows beyond": (
        changed("full_row_indices", lambda a: a + ROWS - a.max()),
        "full_row_indices must be outputs 0..39",
    ),
    "full rows NaN": (changed("full_rows", with_nan), "full_rows must be finite"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_matrices_are_refused_by_name(tmp_path: Path, case: str) -> None:
    change, message = BROKEN[case]
    arrays = parts(3)
    change(arrays)
    tensors = tensors_of({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(WeightMismatchError, match=message) as refused:
        read(tmp_path, {"quant_method": "squeezellm", "wbits": 3}, tensors)
    assert MODULE in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wbits": 2}, "wbits must be one of 3, 4; got 2"),
        ({"wbits": 3}, "lookup_table must have shape"),
        ({}, "bits is required"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "must have qzeros|must have"),
    ],
)
def test_settings_that_contradict_the_tensors(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, {"quant_method": "squeezellm", **settings}, tensors_of(parts(4)))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_parts_never_end_otherwise(tmp_path: Path, seed: int) -> None:
    """Fuzz: parts changed in type, shape or content are read, or refused by an error of ours."""
    random = np.random.default_rng(seed)
    arrays = parts(3 + seed % 2)
    for name in random.permutation(sorted(arrays))[:2]:
        array, kind = arrays[name], random.integers(5)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[name] = np.ascontiguousarray(array.T)
        elif kind == 2:
            arrays[name] = array[: len(array) // 2]
        else:
            noise = random.integers(0, 256, array.nbytes, np.uint8)
            arrays[name] = noise if kind == 3 else noise.view(array.dtype).reshape(array.shape)
    settings = {"quant_method": "squeezellm", "wbits": 3 + seed % 2}
    try:
        read(tmp_path, settings, tensors_of(arrays))
    except ModelLoadError as refused:
        assert str(refused).startswith("[load]")


def test_schemes_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="--bits must be one of 3, 4 with .*squeezellm; got 8"):
        create_scheme("squeezellm", {"bits": 8})
    with pytest.raises(ConfigError, match="--sparse must be from 0 to 0.05; got 0.5"):
        create_scheme("kmeans", {"sparse": 0.5})
    with pytest.raises(ConfigError, match="--sparse must come with --method squeezellm, kmeans"):
        create_scheme("rtn", {"sparse": 0.01})
    schemes = {str(bits): create_scheme("kmeans", {"bits": bits}) for bits in (3, 4)}
    with pytest.raises(ConfigError, match="in as many bits; got 3 and 4"):
        FORMATS["squeezellm"].fit(schemes, dict.fromkeys(schemes, (64, 64)))
    scheme = create_scheme("kmeans", {"bits": 3, "sparse": 0.0045})
    assert str(scheme) == "kmeans, 3 bits, 0.45% sparse"


def test_rows_that_words_do_not_fill_stay_floats() -> None:
    schemes = {name: create_scheme("kmeans", {}) for name in ("whole", "short")}
    fitted, notices = FORMATS["squeezellm"].fit(schemes, {"whole": (7, 96), "short": (8, 80)})
    assert list(fitted) == ["whole"]
    assert "packs columns in multiples of 32" in notices[0] and "short" in notices[0]

"""Packed weights kept in a file: the same logits, mapped; damage and change are noticed."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from quire.checkpoints.packed_weights_cache import checkpoint_digest
from quire.core.errors import ConfigError
from quire.kernels.cpu.native import native
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantization.rounding_schemes import create_scheme
from tests.models.conftest import Driver
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.random_gguf import random_gguf

PROMPT = [np.arange(20) * 5 % 250]
INT4 = QuantizationPlan(create_scheme("int4"), create_scheme("int8"))


@pytest.fixture
def backend():
    return create_backend("cpu", threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    random_checkpoint(path, PRESETS["tiny-llama"])
    return path


def logits(path, backend, cache, **options):
    return Driver(path, backend, packed_weights_cache=str(cache), **options).step(PROMPT)


@pytest.mark.parametrize("plan", [QuantizationPlan(), INT4], ids=["floats", "int4"])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-mixtral", "tiny-gpt2"])
def test_a_second_start_maps_and_computes_the_same(tmp_path, backend, preset, plan, caplog):
    path, cache = tmp_path / "model", tmp_path / "cache"
    random_checkpoint(path, PRESETS[preset])
    want = Driver(path, backend, plan=plan).step(PROMPT)
    with caplog.at_level(logging.INFO):
        first = logits(path, backend, cache, plan=plan)
        assert "kept in" in caplog.text
        second = logits(path, backend, cache, plan=plan)
    assert "mapped from" in caplog.text
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, want)
    (file,) = cache.iterdir()
    assert file.suffix == ".packed"


@pytest.mark.parametrize("name", ["Q8_0", "Q2_K", "Q4_K", "IQ4_XS", "TQ2_0", "MXFP4", "BF16"])
def test_gguf_files(tmp_path, backend, name):
    path, cache = tmp_path / "model.gguf", tmp_path / "cache"
    random_gguf(path, name)
    want = Driver(path, backend).step(PROMPT)
    for _ in range(2):
        np.testing.assert_array_equal(logits(path, backend, cache), want)


def test_what_is_said_of_the_weights_does_not_depend_on_it(tmp_path, folder, backend, caplog):
    said = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            load_model(folder, backend, plan=INT4, packed_weights_cache=str(tmp_path / "cache"))
        lines = [m for m in caplog.messages if "matrices are" in m]
        said.append([line.split(";")[-1] for line in lines])
    assert len(said[0]) >= 2
    assert said[0] == said[1]


DAMAGE = {
    "a bit of the weights": lambda data: data[:9000] + bytes([data[9000] ^ 4]) + data[9001:],
    "cut off": lambda data: data[:-100],
    "a bit of the table": lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:],
    "empty": lambda data: b"",
    "shorter than its head": lambda data: data[:10],
    "another file": lambda data: b"x" * len(data),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_made_again(tmp_path, folder, backend, damage, caplog):
    cache = tmp_path / "cache"
    want = logits(folder, backend, cache)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(DAMAGE[damage](whole))
    np.testing.assert_array_equal(logits(folder, backend, cache), want)
    assert "weights are packed again" in caplog.text
    assert file.read_bytes() == whole


def test_a_file_of_other_settings_is_not_used(tmp_path, folder, backend, caplog):
    """Copied under the name of another, weights of 4 bits were served as what was asked for."""
    mine, others = tmp_path / "mine", tmp_path / "others"
    want = logits(folder, backend, mine)
    load_model(folder, backend, packed_weights_cache=str(others), plan=INT4)
    (file,), (foreign,) = mine.iterdir(), others.iterdir()
    file.write_bytes(foreign.read_bytes())
    np.testing.assert_array_equal(logits(folder, backend, mine), want)
    assert "it is of another checkpoint or other settings" in caplog.text


@pytest.mark.parametrize("missing", [10, 5000, 300_000])
def test_a_disk_that_is_full_costs_the_file_alone(tmp_path, folder, backend, missing, caplog):
    """With no room for the table at the end, loading failed and left a part of the file."""
    want = logits(folder, backend, tmp_path / "measure")
    (file,) = (tmp_path / "measure").iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size - missing, hard))
    try:
        got = logits(folder, backend, tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    np.testing.assert_array_equal(got, want)
    assert "weights are not kept" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_checkpoint_or_setting_has_a_file_of_its_own(tmp_path, folder, backend):
    cache = tmp_path / "cache"
    load_model(folder, backend, packed_weights_cache=str(cache))
    load_model(folder, backend, packed_weights_cache=str(cache), dtype="bfloat16")
    load_model(folder, backend, packed_weights_cache=str(cache), plan=INT4)
    # Exact activations are no business of the weights.
    exact = QuantizationPlan(INT4.layers, INT4.tables, exact_activations=True)
    load_model(folder, backend, packed_weights_cache=str(cache), plan=exact)
    assert len(list(cache.iterdir())) == 3
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = b"\x00\x00\x00\x00"
    weights.write_bytes(data)
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))
    load_model(folder, backend, packed_weights_cache=str(cache))
    assert len(list(cache.iterdir())) == 4


def test_other_weights_of_the_same_size_and_time_have_another_name(tmp_path):
    """As merged adapters have, with the times of an archive: the name saw the first MiB alone."""
    path = tmp_path / "model.gguf"
    names = set()
    for second_half in (b"a", b"b"):
        path.write_bytes(b"a" * (2 << 20) + second_half * (2 << 20))
        os.utime(path, ns=(1, 1))
        names |= {checkpoint_digest(path, ""), checkpoint_digest(path, "")}
    assert len(names) == 2
    assert checkpoint_digest(path, "other settings") not in names


def test_a_failed_load_leaves_nothing(tmp_path, folder, backend):
    cache = tmp_path / "cache"
    exact = QuantizationPlan(exact_activations=True)
    with pytest.raises(ConfigError, match="needs quantized weights"):
        load_model(folder, backend, packed_weights_cache=str(cache), plan=exact)
    assert list(cache.iterdir()) == []


def test_places_that_cannot_be_used(tmp_path, folder, backend, monkeypatch, caplog):
    (tmp_path / "file").write_text("x")
    for place in (str(tmp_path / "file"), "", "~no-such-user/cache"):
        with pytest.raises(ConfigError, match="--packed-weights-cache must be a folder"):
            load_model(folder, backend, packed_weights_cache=place)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    load_model(folder, backend, packed_weights_cache=str(tmp_path / "cache"))
    assert "weights are not kept" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_reference_packs_nothing(tmp_path, folder):
    pytest.importorskip("torch")
    reference = create_backend("reference", threads=1)
    with pytest.raises(ConfigError, match="needs --device cpu"):
        load_model(folder, reference, packed_weights_cache=str(tmp_path))


def checksum(data: bytes | bytearray) -> int:
    (found,) = native.checksums(data, [(0, len(data))])
    return found


def test_checksums_are_those_of_the_parts(backend):
    data = np.random.default_rng(0).bytes((2 << 20) + 5)
    parts = [(0, 7), (4096, 1 << 20), ((2 << 20) + 5, 0), (3, (2 << 20) + 2)]
    wanted = [checksum(data[begin : begin + nbytes]) for begin, nbytes in parts]
    assert native.checksums(data, parts) == wanted
    for part in ((0, len(data) + 1), (len(data) + 1, 0), (len(data), 1)):
        with pytest.raises(ValueError, match="inside the buffer"):
            native.checksums(data, [part])


def test_checksums_tell_every_bit(backend):
    data = bytearray(np.random.default_rng(0).bytes((1 << 20) + 77))
    want = checksum(data)
    for at in (0, 7, 64, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 76):
        data[at] ^= 0x10
        assert checksum(data) != want
        data[at] ^= 0x10
    native.set_num_threads(2)
    assert checksum(data) == want
    native.set_num_threads(1)
    assert checksum(data[:-1]) != want
    assert checksum(b"") != checksum(b"\x00")


def test_mapped_weights_are_not_written(backend):
    data = bytes(np.zeros(4096, np.uint8))
    aligned = np.zeros(32 * 32 * 4 + 64, np.uint8)
    start = -aligned.ctypes.data % 64
    packed = native.PackedFloatWeights(32, 32, 0, aligned[start : start + 4096])
    with pytest.raises(ValueError, match="must not be packed again"):
        packed.pack(np.zeros((32, 32), np.float32), 0, 0, 32)
    with pytest.raises(ValueError, match="must have their size"):
        native.PackedFloatWeights(32, 32, 0, aligned[start + 1 : start + 4097])
    with pytest.raises(ValueError, match="at least"):
        native.PackedFloatWeights(64, 32, 0, data)

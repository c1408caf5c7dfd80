"""The safetensors reader against the format's own library, and against damaged files."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.core.errors import ModelLoadError

TENSORS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(-2, 2, 5, dtype=np.float16),
    "scalar": np.array(3.5, dtype=np.float32),
    "none": np.zeros((0, 4), dtype=np.float32),
    "mask": np.ones(3, dtype=np.uint8),
}


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_reads_what_the_library_wrote(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert set(file.entries) == set(TENSORS)
    for name in ("weight", "half", "scalar", "none"):
        tensor = file.tensor(name)
        assert tensor.shape == TENSORS[name].shape
        assert np.array_equal(tensor.array, TENSORS[name])
    file.release("weight")
    assert np.array_equal(file.tensor("weight").array, TENSORS["weight"])


def test_bfloat16_is_read_to_the_bit(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    path = tmp_path / "model.safetensors"
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_torch({"a": values}, path)
    tensor = SafetensorsFile(path).tensor("a")
    assert tensor.dtype == "bfloat16"
    assert np.array_equal(tensor.float32(), values.float().numpy())


def test_tensors_at_odd_places_are_aligned(tmp_path):
    values = np.arange(3, dtype=np.float32)
    header = {"pad": entry("U8", (1,), (0, 1)), "a": entry("F32", (3,), (1, 13))}
    path = write(tmp_path / "odd.safetensors", header, b"\0" + values.tobytes())
    array = SafetensorsFile(path).tensor("a").array
    assert array.flags.aligned
    assert np.array_equal(array, values)


def test_other_element_types_are_refused_when_loaded(tmp_path):
    path = write(tmp_path / "i.safetensors", {"ids": entry("I64", (1,), (0, 8))}, bytes(8))
    with pytest.raises(ModelLoadError, match=r"ids must be one of F32, F16, BF16; got I64"):
        SafetensorsFile(path).tensor("ids")


DAMAGED = {
    "empty": (b"", "8 bytes of header length"),
    "short-length": (b"\1\0\0", "8 bytes of header length"),
    "absurd-length": (b"\xff" * 8 + b"{}", "header of at most"),
    "header-beyond-file": ((1000).to_bytes(8, "little") + b"{}", "must hold its header"),
    "not-json": ((3).to_bytes(8, "little") + b"{a}", "header in JSON"),
    "not-utf8": ((3).to_bytes(8, "little") + b'"\xff"', "header in JSON"),
    "not-an-object": ((2).to_bytes(8, "little") + b"[]", "object as header"),
    "too-deep": ((200000).to_bytes(8, "little") + b"[" * 200000, "header in JSON"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_header_is_refused(tmp_path, name):
    content, message = DAMAGED[name]
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as error:
        SafetensorsFile(path)
    assert path.name in str(error.value)


WRONG = {
    "unknown-dtype": ({"a": entry("F31")}, "a must have a known dtype; got F31"),
    "dtype-not-text": ({"a": entry(["F32"])}, "a must have a known dtype"),
    "negative-size": ({"a": entry(shape=(-2,))}, "a must have a shape"),
    "float-size": ({"a": entry(shape=(2.0,))}, "a must have a shape"),
    "boolean-size": ({"a": entry(shape=(True, 2))}, "a must have a shape"),
    "many-dims": ({"a": entry(shape=(1,) * 17)}, "a must have a shape"),
    "size-mismatch": ({"a": entry(shape=(3,))}, r"a must take 12 bytes as F32 \(3,\); got 8"),
    "backward-offsets": ({"a": entry(offsets=(8, 0))}, r"a must have data_offsets"),
    "three-offsets": ({"a": entry(offsets=(0, 4, 8))}, r"a must have data_offsets"),
    "missing-field": ({"a": {"dtype": "F32", "shape": [2]}}, "a must have dtype, shape and"),
    "not-a-description": ({"a": 5}, "a must have dtype, shape and"),
    "outside": ({"a": entry(), "b": entry(offsets=(8, 16))}, "b must lie in the file"),
    "overlap": ({"a": entry(), "b": entry(shape=(1,), offsets=(4, 8))}, "b must begin where a"),
    "gap": ({"a": entry(shape=(1,), offsets=(4, 8))}, "a must begin where the header"),
    "trailing": ({"a": entry(shape=(1,), offsets=(0, 4))}, "must end with a"),
    "twice": (
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}',
        "twice the name a",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_description_names_the_tensor(tmp_path, name):
    header, message = WRONG[name]
    path = write(tmp_path / f"{name}.safetensors", header, bytes(8))
    with pytest.raises(ModelLoadError, match=message):
        SafetensorsFile(path)


def test_every_truncation_is_refused(tmp_path):
    whole = tmp_path / "whole.safetensors"
    save_file(TENSORS, whole)
    content, path = whole.read_bytes(), tmp_path / "cut.safetensors"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelLoadError):
            SafetensorsFile(path)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_corrupted_bytes_give_an_error_or_tensors_inside_the_file(tmp_path, changes):
    path = tmp_path / "whole.safetensors"
    if not path.exists():
        save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    for position, value in changes:
        content[position % len(content)] = value
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content)
    try:
        file = SafetensorsFile(damaged)
    except ModelLoadError as error:
        assert damaged.name in str(error)
        return
    for name, place in file.entries.items():
        assert 0 <= place.begin <= place.end <= len(content)
        try:
            array = file.tensor(name).array
        except ModelLoadError:
            continue
        assert array.nbytes == place.nbytes
        assert array.tobytes() == bytes(content[place.begin : place.end])

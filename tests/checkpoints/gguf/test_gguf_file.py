"""GGUF headers: what the ``gguf`` package writes is read, and every damage is refused by name."""

import struct
from array import array

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.checkpoints.gguf.gguf_file import MAX_HEADER_BYTES, GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.core.errors import ModelLoadError

U32, F32, STRING, ARRAY, U64 = 4, 6, 8, 9, 10


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def tensor(name, dims, kind=0, offset=0):
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def document(entries=(), tensors=(), data=b"", version=3, counts=None):
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries)
    body = head + b"".join(entries) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data


ARCHITECTURE = entry("general.architecture", STRING, text("llama"))
VALID = document(
    [
        ARCHITECTURE,
        entry("a.list", ARRAY, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        entry("a.names", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + text("é")),
        entry("a.flag", 7, b"\x01"),
        entry("a.nested", ARRAY, struct.pack("<IQIQBB", ARRAY, 1, 0, 2, 5, 6)),
        entry("a.real", F32, struct.pack("<f", 0.5)),
    ],
    [tensor("w", (64, 2), 8), tensor("b", (8,), 0, 160)],
    bytes(160 + 32),
)
HUGE = 2**63

#: What is wrong, the bytes, and what the message must name.
HOSTILE = {
    "empty": (b"", "header of 24 bytes"),
    "short": (VALID[:20], "header of 24 bytes"),
    "magic": (b"GGML" + VALID[4:], "bytes GGUF"),
    "version-1": (document(version=1), "version 2 or 3; got 1"),
    "version-4": (document(version=4), "version 2 or 3; got 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "many-tensors": (document(counts=(HUGE, 0)), f"{HUGE} tensors"),
    "many-entries": (document(counts=(0, HUGE)), f"{HUGE} metadata entries"),
    "more-entries-than-there-are": (document([ARCHITECTURE], counts=(0, 2)), "key 1"),
    "key-length": (document([struct.pack("<QQQ", HUGE, 0, 0)]), "key 0 must have 1 to"),
    "key-empty": (document([entry("", U32, bytes(40))]), "key 0 must have 1 to"),
    "key-no-utf8": (document([entry(b"\xff\xfe", U32, bytes(9))]), "key 0 must be UTF-8"),
    "key-control": (document([entry("a\x00b", U32, bytes(9))]), "key 0 must be printable"),
    "key-twice": (document([ARCHITECTURE, ARCHITECTURE]), "general.architecture twice"),
    "value-type": (document([entry("k", 13, bytes(9))]), "k must have a type from 0 to 12"),
    "string-length": (document([entry("k", STRING, struct.pack("<Q", HUGE))]), "in k must fit"),
    "string-no-utf8": (document([entry("k", STRING, text(b"\xc3"))]), "k must be UTF-8"),
    "array-type": (document([entry("k", ARRAY, struct.pack("<IQ", 99, 1))]), "k must have elem"),
    "array-length": (
        document([entry("k", ARRAY, struct.pack("<IQ", U64, HUGE))]),
        f"{HUGE} elements of k",
    ),
    "array-of-strings-length": (
        document([entry("k", ARRAY, struct.pack("<IQ", STRING, 2**40))]),
        "elements of k",
    ),
    "array-too-deep": (
        document([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9 + bytes(64))]),
        "k must nest at most",
    ),
    "boolean": (document([entry("k", 7, b"\x02" + bytes(9))]), "k must be 0 or 1; got 2"),
    "alignment-zero": (
        document([entry("general.alignment", U32, bytes(4))]),
        "general.alignment must be a power of 2",
    ),
    "alignment-odd": (
        document([entry("general.alignment", U32, struct.pack("<I", 48))]),
        "general.alignment must be a power of 2",
    ),
    "alignment-text": (
        document([entry("general.alignment", STRING, text("32"))]),
        "general.alignment must be a power of 2",
    ),
    "tensor-twice": (
        document(tensors=[tensor("w", (8,)), tensor("w", (8,), 0, 32)], data=bytes(64)),
        "w twice",
    ),
    "tensor-no-dims": (document(tensors=[tensor("w", ())], data=bytes(64)), "w must have 1 to 4"),
    "tensor-many-dims": (document(tensors=[tensor("w", (1,) * 5)]), "w must have 1 to 4 dims"),
    "tensor-dims-2**32": (
        document(tensors=[text("w") + struct.pack("<I", 2**32 - 1) + bytes(64)]),
        "w must have 1 to 4 dims",
    ),
    "tensor-dim-zero": (document(tensors=[tensor("w", (0, 8))]), "w must have dims > 0"),
    "tensor-size-overflows": (document(tensors=[tensor("w", (2**40, 2**40))]), "must lie in"),
    "tensor-size-wraps-to-nothing": (
        document(tensors=[tensor("w", (2**32, 2**32))], data=bytes(64)),
        "w must lie in the file",
    ),
    "tensor-dim-huge": (document(tensors=[tensor("w", (HUGE, 2))]), "w must have dims > 0"),
    "tensor-part-of-a-block": (
        document(tensors=[tensor("w", (33,), 8)], data=bytes(64)),
        "a multiple of 32 for Q8_0",
    ),
    "tensor-type": (document(tensors=[tensor("w", (256,), 15)]), r"got Q8_K \(15\)"),
    "tensor-type-unknown": (document(tensors=[tensor("w", (8,), 4711)]), "got unknown"),
    "offset-outside": (
        document(tensors=[tensor("w", (8,), 0, 2**40)], data=bytes(64)),
        "w must lie in the file",
    ),
    "offset-overflows": (
        document(tensors=[tensor("w", (8,), 0, 2**64 - 32)], data=bytes(64)),
        "w must lie in the file",
    ),
    "offset-misaligned": (
        document(tensors=[tensor("w", (8,), 0, 4)], data=bytes(64)),
        "w must begin at a multiple of 32",
    ),
    "overlap": (
        document(tensors=[tensor("v", (16,)), tensor("w", (8,), 0, 32)], data=bytes(128)),
        "w must begin after v",
    ),
    "same-place": (
        document(tensors=[tensor("v", (8,)), tensor("w", (8,))], data=bytes(128)),
        "w must begin after v",
    ),
    "cut-off": (VALID[:-1], "b must lie in the file"),
}


@pytest.fixture
def read(tmp_path):
    """Return a function that writes bytes to a file and opens it."""

    def open_bytes(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return GgufFile(path)

    return open_bytes


@pytest.mark.parametrize("version", [2, 3])
def test_values_and_places(version, read):
    file = read(VALID[:4] + struct.pack("<I", version) + VALID[8:])
    assert file.version == version
    assert file.metadata == {
        "general.architecture": "llama",
        "a.list": array("i", [1, -2, 3]),
        "a.names": ["x", "é"],
        "a.flag": True,
        "a.nested": [array("B", [5, 6])],
        "a.real": 0.5,
    }
    assert file.tensors["w"].shape == (2, 64)
    assert file.tensors["w"].nbytes == 4 * 34
    assert file.tensors["b"].begin == file.tensors["w"].begin + 160


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name, read):
    data, message = HOSTILE[name]
    with pytest.raises(ModelLoadError, match=message) as caught:
        read(data)
    assert "model.gguf" in str(caught.value)


def test_truncation_at_every_byte_is_refused(read):
    for end in range(len(VALID)):
        with pytest.raises(ModelLoadError):
            read(VALID[:end])


def test_header_beyond_the_limit_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    length = struct.pack("<IQQ", U32, MAX_HEADER_BYTES, 0)
    with path.open("wb") as file:
        file.write(document([text("k") + struct.pack("<I", ARRAY) + length]))
        file.truncate(8 * MAX_HEADER_BYTES)
    with pytest.raises(ModelLoadError, match="bytes of header"):
        GgufFile(path)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelLoadError, match="must be readable"):
            GgufFile(path)


def test_typed_access(read):
    file = read(VALID)
    assert file.text("missing", "x") == "x"
    assert file.integer("missing") is None
    for ask, key in [
        (file.text, "a.flag"), (file.integer, "a.flag"), (file.texts, "a.list"),
        (file.numbers, "a.names"), (file.text, "missing"),
    ]:  # fmt: skip
        with pytest.raises(ModelLoadError, match=f"{key} must be"):
            ask(key)
    with pytest.raises(ModelLoadError, match="a.list must be true or false; got 3 elements"):
        file.boolean("a.list", False)


def test_files_of_the_gguf_package(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_context_length(128)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_types([1, 2, 3])
    arrays = {f"t{i}": np.arange(96 * i, dtype=np.float32).reshape(i, 96) for i in (1, 2, 3)}
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert file.metadata["llama.context_length"] == 128
    assert file.texts("tokenizer.ggml.tokens") == ["a", "b", "ü"]
    assert file.numbers("tokenizer.ggml.token_type") == [1, 2, 3]
    for name, values in arrays.items():
        assert file.tensors[name].begin % 64 == 0
        assert np.array_equal(np.frombuffer(file.data(name), np.float32), values.reshape(-1))


def test_the_gguf_package_reads_what_we_write(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    metadata = {
        "general.architecture": "llama", "a.int": 7, "a.real": 0.25, "a.flag": False,
        "a.texts": ["x", "ü", ""], "a.ints": array("i", [-1, 2]), "a.bytes": array("B", [1, 255]),
    }  # fmt: skip
    values = {"v": np.arange(5, dtype=np.float32), "w": np.ones((3, 32), np.float32)}
    plans = [
        TensorPlan(n, LAYOUTS["F32"], v.shape, lambda v=v: iter([v.tobytes()]))
        for n, v in values.items()
    ]
    seen = []
    write_gguf(path, metadata, plans, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20 + 384, 20 + 384)
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        got = reader.fields[key].contents()
        assert got == (list(value) if isinstance(value, array) else value)
    for tensor_read in reader.tensors:
        assert np.array_equal(tensor_read.data, values[tensor_read.name])
    mine = GgufFile(path)
    assert mine.metadata == metadata


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail():
        raise OSError("disk full")
        yield b""

    with pytest.raises(OSError, match="disk full"):
        write_gguf(tmp_path / "m.gguf", {}, [TensorPlan("w", LAYOUTS["F32"], (8,), fail)])
    assert list(tmp_path.iterdir()) == []


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(VALID) - 1),
            st.one_of(
                st.binary(min_size=1, max_size=1),
                st.sampled_from([b"\xff" * 8, bytes(8), struct.pack("<Q", 2**62), b"\x7f" * 4]),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, len(VALID)),
)
def test_mutated_files_load_or_are_refused(tmp_path, mutations, end):
    """Only ModelLoadError may come out, and what loads has every tensor inside the file."""
    data = bytearray(VALID)
    for at, replacement in mutations:
        data[at : at + len(replacement)] = replacement
    # Half of the examples keep their end.
    data = bytes(data[: end if end % 2 else len(data)])
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    try:
        file = GgufFile(path)
    except ModelLoadError:
        return
    for name, place in file.tensors.items():
        assert 0 <= place.begin < place.end <= len(data)
        assert len(file.data(name)) == place.nbytes
        file.release(name)

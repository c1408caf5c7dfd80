"""Importance matrices: the GGUF form both ways, the older form, and files that are neither."""

import struct

import numpy as np
import pytest

from quire.checkpoints.gguf.importance_matrix import (
    ImportanceEntry,
    ImportanceMatrix,
    read_importance_matrix,
    write_importance_matrix,
)
from quire.core.errors import ModelLoadError

gguf = pytest.importorskip("gguf")


def matrix(path):
    sums = np.arange(12, dtype=np.float32).reshape(3, 4)
    entries = {
        "blk.0.attn_q.weight": ImportanceEntry(sums[:1] + 1, np.float32([2])),
        "blk.0.ffn_up_exps.weight": ImportanceEntry(sums, np.float32([4, 0, 1])),
    }
    return ImportanceMatrix(path, entries, "text.txt", 3, 512)


def older(name=b"blk.0.attn_q.weight", values=(2.0, 4.0), calls=2, entries=1):
    data = struct.pack("<ii", entries, len(name)) + name
    data += struct.pack(f"<ii{len(values)}f", calls, len(values), *values)
    return data + struct.pack("<ii", 7, 4) + b"text"


def test_what_is_written_is_read_here_and_by_gguf(tmp_path):
    path = tmp_path / "i.gguf"
    write_importance_matrix(path, matrix(path))
    found = read_importance_matrix(path)
    assert (found.dataset, found.num_chunks, found.chunk_size) == ("text.txt", 3, 512)
    for name, entry in matrix(path).entries.items():
        assert np.array_equal(found.entries[name].sums, entry.sums)
        assert np.array_equal(found.entries[name].counts, entry.counts)
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    assert shapes["blk.0.ffn_up_exps.weight.in_sum2"] == [4, 3]
    assert shapes["blk.0.ffn_up_exps.weight.counts"] == [1, 3]


def test_means_of_experts_and_of_one_that_saw_nothing(tmp_path):
    means = matrix(tmp_path).of_tensor("blk.0.ffn_up_exps.weight", 3, 4)
    assert [row.tolist() for row in means] == [[0, 0.25, 0.5, 0.75], [1] * 4, [8, 9, 10, 11]]


def test_the_older_form(tmp_path):
    path = tmp_path / "i.dat"
    path.write_bytes(older())
    found = read_importance_matrix(path)
    assert found.of_tensor("blk.0.attn_q.weight", 1, 2)[0].tolist() == [1, 2]
    assert (found.dataset, found.num_chunks) == ("text", 7)


def test_a_tensor_without_an_entry_is_told_unless_it_is_a_table(tmp_path, caplog):
    found = matrix(tmp_path)
    assert found.of_tensor("token_embd.weight", 1, 4) == [None]
    assert not caplog.records
    assert found.of_tensor("blk.1.attn_q.weight", 1, 4) == [None]
    assert "blk.1.attn_q.weight; all inputs count alike" in caplog.text


def test_another_models_matrix_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="of 1 x 8 inputs; got 1 x 4"):
        matrix(tmp_path).of_tensor("blk.0.attn_q.weight", 1, 8)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "whole importance matrix"),
        (older()[:30], "whole importance matrix"),
        (older(values=(float("nan"), 1)), "finite numbers"),
        (older(values=(-1, 1)), "finite numbers"),
        (older(name=b"x" * 300), "names of at most"),
        (struct.pack("<ii", 0, 0), "sums of some tensor"),
        (older(entries=-5), "importance matrix of llama.cpp"),
        (struct.pack("<iii", 1, 1, 2), "whole importance matrix"),
        (older(name=b"\xff\xfe"), "UTF-8"),
    ],
)
def test_damaged_files_are_refused(tmp_path, data, rule):
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=rule):
        read_importance_matrix(path)


def test_a_sum_without_a_count_is_refused(tmp_path):
    path = tmp_path / "i.gguf"
    entry = ImportanceEntry(np.ones((2, 4), np.float32), np.ones(1, np.float32))
    write_importance_matrix(path, ImportanceMatrix(path, {"a": entry}))
    with pytest.raises(ModelLoadError, match="a count for each expert of a"):
        read_importance_matrix(path)

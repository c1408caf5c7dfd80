"""``quire imatrix``: mean squares of inputs, and files made with them."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.importance_matrix import read_importance_matrix
from quire.cli.main import run
from quire.kernels.registry import create_backend
from quire.quantizing.inputs.importance import collect_importance
from tests.quantizing.linear_inputs import LinearInputs, calibration_samples
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

THEIR_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@contextmanager
def no_bar(label, total):
    yield lambda amount, remark: None


def test_sums_are_those_of_transformers_inputs(tiny):
    samples = calibration_samples(tiny, ("--samples", "3", "--sample-length", "48"))
    found = collect_importance(tiny, samples, create_backend("cpu", threads=1), no_bar)
    oracle = LinearInputs(tiny)
    for layer in (0, 5):
        prefix = f"model.layers.{layer}."
        inputs = oracle.of(prefix, samples)
        for module, name in THEIR_NAMES.items():
            entry = found[f"blk.{layer}.{name}.weight"]
            rows = inputs[prefix + module]
            assert entry.counts.tolist() == [len(rows)]
            np.testing.assert_allclose(entry.means[0], (rows**2).mean(axis=0), rtol=2e-3)


def test_experts_have_counts_of_their_own(tmp_path):
    random_checkpoint(tmp_path, PRESETS["tiny-mixtral"])
    samples = [np.arange(3, 40, dtype=np.int32)]
    found = collect_importance(tmp_path, samples, create_backend("cpu", threads=1), no_bar)
    entry = found["blk.0.ffn_up_exps.weight"]
    oracle = LinearInputs(tmp_path)
    for expert in range(4):
        rows = oracle.of_expert(0, expert, samples)
        assert entry.counts[expert] == len(rows)
        np.testing.assert_allclose(entry.sums[expert], (rows**2).sum(axis=0), rtol=2e-3)


@pytest.fixture(scope="module")
def matrix(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("imatrix") / "i.gguf"
    options = ("--samples", "4", "--sample-length", "64", "--threads", "1")
    assert run(["imatrix", str(tiny), str(path), *options]) == 0
    return path


def test_the_command_writes_every_linear(matrix):
    found = read_importance_matrix(matrix)
    assert len(found.entries) == 6 * 7
    assert (found.num_chunks, found.chunk_size) == (4, 64)
    assert "calibration.jsonl" in found.dataset


def test_convert_takes_it_and_serves_what_it_made(matrix, tiny, tmp_path, capsys):
    files = [tmp_path / "plain.gguf", tmp_path / "with.gguf"]
    base = ("convert", str(tiny), "--type", sized("q4_0", "q2_k"), "--threads", "1")
    assert run([*base, str(files[0])]) == 0
    assert run([*base, str(files[1]), "--imatrix", str(matrix)]) == 0
    plain, other = (bytes(GgufFile(file).data("blk.2.attn_q.weight")) for file in files)
    assert plain != other
    capsys.readouterr()
    words = ("--prompt", "The", "--max-tokens", "4", "--temperature", "0")
    assert run(["generate", str(files[1]), *words]) == 0


def test_what_is_wrong_is_told_by_name(matrix, tiny, tmp_path, capsys):
    assert run(["imatrix", str(tiny), str(matrix)]) == 1
    assert "OUT must not exist" in capsys.readouterr().err
    assert run(["imatrix", str(matrix), str(tmp_path / "o")]) == 1
    assert "must be a folder of safetensors; got file" in capsys.readouterr().err
    other = tmp_path / "folder"
    random_checkpoint(other, PRESETS["tiny-llama"])
    target = str(tmp_path / "o.gguf")
    assert run(["convert", str(other), target, "--type", "q4_0", "--imatrix", str(matrix)]) == 1
    assert "It is another model's" in capsys.readouterr().err

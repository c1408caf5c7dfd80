"""Checkpoints that are divided over ranks beforehand: what they load as, and what they refuse."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quire.cli.main import run
from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.kernels.registry import create_backend
from quire.layers.expert_placement import ExpertDivision
from quire.models.shards.rank_files import INDEX, rank_file
from quire.models.shards.rank_model import Shard
from tests.distributed.thread_ranks import on_ranks
from tests.models.test_quantized_checkpoint import APART, FIXTURES, FOLDERS

FAMILIES = ("llama-biased-tied", "gpt2", "cohere-plus", "deepseek-v3", "gpt-oss", "qwen2-moe")

WHOLE = ExpertDivision(True)


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


def convert(folder, out, size, *options):
    assert run(["convert", str(folder), str(out), "-tp", str(size), *options]) == 0
    assert {path.name for path in out.glob("*.safetensors")} == {
        rank_file(rank, size) for rank in range(size)
    }
    return out


def check(folder, out, size, cpu, create_driver):
    prompt = [np.arange(24) * 7 % 32]

    def logits(path):
        ranks = on_ranks(
            size, lambda group: create_driver(path, cpu, shard=Shard(group)).step(prompt)
        )
        return ranks[0]

    np.testing.assert_array_equal(logits(out), create_driver(folder, cpu).step(prompt))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_bits_of_one_rank(name, oracle, cpu, create_driver, tmp_path):
    _, folder = oracle(name)
    check(folder, convert(folder, tmp_path / "out", 3), 3, cpu, create_driver)


@pytest.mark.parametrize("name", [*FOLDERS, APART])
def test_a_layout_has_the_bits_of_one_rank(name, cpu, create_driver, tmp_path):
    folder = FIXTURES / name
    check(folder, convert(folder, tmp_path / "out", 2), 2, cpu, create_driver)


@pytest.fixture(scope="module")
def divided(tmp_path_factory, oracle):
    """Return a model of experts divided over two ranks."""
    return convert(oracle("qwen3-moe")[1], tmp_path_factory.mktemp("ranks") / "out", 2, "-ep")


def test_a_rank_needs_its_own_file_alone(divided, cpu, create_driver, tmp_path):
    shutil.copytree(divided, tmp_path / "own")
    (tmp_path / "own" / rank_file(0, 2)).unlink()

    def body(group):
        if group.rank:
            return create_driver(
                tmp_path / "own", cpu, shard=Shard(group, True, WHOLE)
            ).decoder.weight_bytes
        return create_driver(divided, cpu, shard=Shard(group, True, WHOLE)).decoder.weight_bytes

    assert all(on_ranks(2, body))


def test_experts_that_move_are_read_from_the_other_ranks_file(divided, oracle, cpu, create_driver):
    prompt = [np.arange(40) * 7 % 32]

    def body(group):
        shard = Shard(group, True, WHOLE)
        driver = create_driver(divided, cpu, shard=shard)
        for layer in driver.decoder.rank_experts:
            layer.num_rows[:] = np.arange(len(layer.num_rows))[::-1] ** 3
            assert layer.rebalance()
        return driver.step(prompt)

    want = create_driver(oracle("qwen3-moe")[1], cpu).step(prompt)
    np.testing.assert_array_equal(on_ranks(2, body)[0], want)


def test_another_division_of_experts_is_refused(divided, cpu, create_driver):
    with pytest.raises(ModelLoadError, match="--enable-expert-parallel that is not set"):
        on_ranks(2, lambda group: create_driver(divided, cpu, shard=Shard(group)))


def test_another_number_of_ranks_is_refused(divided, cpu, create_driver):
    with pytest.raises(ModelLoadError, match="divided over 2 ranks.* must be; got 3. Give"):
        on_ranks(3, lambda group: create_driver(divided, cpu, shard=Shard(group, True, WHOLE)))
    with pytest.raises(ModelLoadError, match="divided over 2 ranks.* must be; got 1. Give"):
        create_driver(divided, cpu)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"version": 9}, "must be of version 1; got 9"),
        ({"tensors": {"a": 1}}, "must describe files of ranks"),
        ({"names": {}}, "must describe files of ranks"),
        ({"tensors": {"a": [[1], "x", None]}}, "must describe files of ranks"),
        ({"tensors": {"a": [[1], 4, 7]}}, "must describe files of ranks"),
    ],
)
def test_a_damaged_index_is_refused(damage, said, divided, cpu, create_driver, tmp_path):
    shutil.copytree(divided, tmp_path / "own")
    index = json.loads((tmp_path / "own" / INDEX).read_text())
    (tmp_path / "own" / INDEX).write_text(json.dumps(index | damage))
    with pytest.raises(ModelLoadError, match=said):
        create_driver(tmp_path / "own", cpu)


def test_a_damaged_file_is_refused(divided, cpu, create_driver, tmp_path):
    shutil.copytree(divided, tmp_path / "own")
    shutil.copy(FIXTURES / "bnb-nf4" / "model.safetensors", tmp_path / "own" / rank_file(1, 2))
    with pytest.raises(ModelLoadError, match="must describe its tensors"):
        on_ranks(
            2, lambda group: create_driver(tmp_path / "own", cpu, shard=Shard(group, True, WHOLE))
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda array: array[:-1], r"norm.weight must be a matrix that was divided; .*, not \("),
        (lambda array: array.astype(np.float16), "float16, not float32"),
    ],
)
def test_a_part_of_another_shape_or_type_is_refused(
    change, said, oracle, cpu, create_driver, tmp_path
):
    """Kernels trust both: they would read what comes after it."""
    out = convert(oracle("llama")[1], tmp_path / "out", 2)
    path = out / rank_file(1, 2)
    tensors = load_file(path)
    save_file(
        tensors | {"model.norm.weight/array": change(tensors["model.norm.weight/array"])}, path
    )
    with pytest.raises(WeightMismatchError, match=said):
        on_ranks(2, lambda group: create_driver(out, cpu, shard=Shard(group)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-tp", "1"], "must be at least 2; got 1"),
        (["-tp", "2", "--type", "q8_0"], "--type must be left out"),
        (["-tp", "500"], "at most 64, the elements of a hidden state"),
    ],
)
def test_what_cannot_be_divided_is_said(arguments, said, oracle, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["convert", str(oracle("llama")[1]), str(out), *arguments]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_a_folder_with_files_is_kept_without_force(oracle, tmp_path, capsys):
    (tmp_path / "notes").write_text("precious")
    arguments = ["convert", str(oracle("llama")[1]), str(tmp_path), "-tp", "2"]
    assert run(arguments) == 1
    assert "Give --force to replace what is in it" in capsys.readouterr().err
    assert run([*arguments, "--force"]) == 0
    assert (tmp_path / "notes").read_text() == "precious"

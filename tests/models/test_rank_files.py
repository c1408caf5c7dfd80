"""Checkpoints that are divided over ranks beforehand: what they load as, and what they refuse."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors import torch as torch_files
from safetensors.numpy import load_file, save_file

from quire.checkpoints.rank_files import INDEX, rank_file
from quire.cli.main import run
from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.kernels.registry import create_backend
from quire.layers.parallel.expert_placement import ExpertDivision
from quire.models.config.config_reader import read_model_config
from quire.models.shards.rank_model import Shard
from quire.models.stage import GroupLink, Stage
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import create_plan
from quire.settings.config import ModelOptions
from quire.settings.parallel_layout import ParallelLayout
from tests.distributed.thread_group import thread_groups
from tests.distributed.thread_ranks import on_ranks
from tests.models.test_quantized_checkpoint import APART, FIXTURES, FOLDERS

FAMILIES = ("llama-biased-tied", "gpt2", "cohere-plus", "deepseek-v3", "gpt-oss", "qwen2-moe")

WHOLE = ExpertDivision(True)


@pytest.fixture(scope="module")
def cpu():
    return create_backend("cpu", threads=1)


def convert(folder, out, size, *options, stages=1):
    divided = ["-tp", str(size)] if stages == 1 else ["-tp", str(size), "-pp", str(stages)]
    assert run(["convert", str(folder), str(out), *divided, *options]) == 0
    size *= stages
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


def stage_logits(path, layout, cpu, create_driver, experts=WHOLE):
    """Return the logits of a model on the ranks of a layout, each reading its file."""
    prompt, num_layers = [np.arange(24) * 7 % 32], read_model_config(path).num_layers
    shards = [thread_groups(layout.tensor) for _ in range(layout.pipeline)]

    def body(group):
        stage, shard = layout.place(group.rank)
        layers = layout.stage_layers(num_layers)[stage]
        before = GroupLink(cpu, group, group.rank - layout.tensor) if stage else None
        is_last = stage + 1 == layout.pipeline
        after = None if is_last else GroupLink(cpu, group, group.rank + layout.tensor)
        own = Shard(shards[stage][shard], True, experts) if layout.tensor > 1 else None
        driver = create_driver(path, cpu, stage=Stage(layers, before, after), shard=own)
        return driver.step(prompt)

    return on_ranks(layout.size, body)[-layout.tensor]


@pytest.mark.parametrize("name", FAMILIES)
def test_stages_of_a_family_have_the_bits_of_one_rank(name, oracle, cpu, create_driver, tmp_path):
    _, folder = oracle(name)
    want = create_driver(folder, cpu).step([np.arange(24) * 7 % 32])
    out = convert(folder, tmp_path / "stages", 1, stages=3)
    np.testing.assert_array_equal(
        stage_logits(out, ParallelLayout(pipeline=3), cpu, create_driver), want
    )
    layout = ParallelLayout(2, 2, (1, 2))
    out = convert(folder, tmp_path / "both", 2, "-ep", "--stage-layers", "1,2", stages=2)
    np.testing.assert_array_equal(stage_logits(out, layout, cpu, create_driver), want)


def twice(folder, out):
    """Write a checkpoint of one layer with that layer twice."""
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    kinds = {"layer_types": 2 * config["layer_types"]} if "layer_types" in config else {}
    (out / "config.json").write_text(json.dumps(config | kinds | {"num_hidden_layers": 2}))
    path = out / "model.safetensors"
    tensors = torch_files.load_file(path)
    again = {
        name.replace("layers.0.", "layers.1."): tensor.clone()
        for name, tensor in tensors.items()
        if "layers.0." in name
    }
    torch_files.save_file(tensors | again, path)
    return out


@pytest.mark.parametrize("name", [*FOLDERS, APART])
def test_stages_of_a_layout_have_the_bits_of_one_rank(name, cpu, create_driver, tmp_path):
    folder = twice(FIXTURES / name, tmp_path / "twice")
    out = convert(folder, tmp_path / "out", 1, stages=2)
    got = stage_logits(out, ParallelLayout(pipeline=2), cpu, create_driver)
    np.testing.assert_array_equal(got, create_driver(folder, cpu).step([np.arange(24) * 7 % 32]))


def test_a_stage_has_its_layers_alone_and_the_bytes_that_are_expected(
    oracle, cpu, create_driver, tmp_path
):
    """The head is the embedding: both stages have that, and it is counted once in each."""
    _, folder = oracle("llama-biased-tied")
    out = convert(folder, tmp_path / "out", 1, "--stage-layers", "1,2", stages=2)
    held = [load_file(out / rank_file(rank, 2)) for rank in range(2)]
    layers = [{int(n.split(".")[2]) for n in own if n.startswith("model.layers.")} for own in held]
    assert layers == [{0, 1}, {1, 2}]  # a stage ends with the next layer's first norm
    assert len([name for name in held[0] if "layers.1." in name]) == 1
    plan, config = create_plan(ModelOptions()), read_model_config(out)
    for part in (range(1), range(1, 3)):
        sizes = [
            expected_weight_bytes(path, config, "float32", plan, 64, layers=part)
            for path in (folder, out)
        ]
        assert sizes[0] == sizes[1]


def test_other_stages_are_refused(oracle, cpu, create_driver, tmp_path):
    out = convert(oracle("llama")[1], tmp_path / "out", 1, "--stage-layers", "1,2", stages=2)
    said = "into stages of 1,2 layers.* layers 0 to 1. Give --pipeline-parallel-size 2 --stage-la"
    with pytest.raises(ModelLoadError, match=said):
        stage_logits(out, ParallelLayout(1, 2), cpu, create_driver)
    with pytest.raises(ModelLoadError, match="got one of layers 0 to 2"):
        create_driver(out, cpu)
    with pytest.raises(ModelLoadError, match="over 1 shard, which --tensor-parallel-size must be"):
        on_ranks(2, lambda group: create_driver(out, cpu, shard=Shard(group)))


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
        ({"stage_layers": [3, 0]}, "must describe files of ranks"),
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
        (["-tp", "1"], "must be at least 2; got 1 and 1"),
        (["-pp", "1"], "must be at least 2; got 1 and 1"),
        (["-pp", "4"], "--pipeline-parallel-size must be at most 3, the layers of the model"),
        (["-pp", "2", "--stage-layers", "3"], "--stage-layers must be a number of at least 1 for"),
        (["-pp", "2", "--stage-layers", "3,3"], "must be the 3 layers of the model in all"),
        (["-pp", "2", "-ep"], "--enable-expert-parallel needs --tensor-parallel-size"),
        (["--stage-layers", "1,2"], "--stage-layers needs --pipeline-parallel-size"),
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

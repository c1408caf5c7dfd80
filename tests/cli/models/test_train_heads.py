"""``quire train-heads``: from a model and its own answers to a folder with a head."""

import json
import sys

import pytest

from quire.cli.models.train_heads import train_heads
from quire.core.errors import ConfigError
from tests.sizes import sized

torch = pytest.importorskip("torch")

#: A step at least, and a held-out answer.
FEW = sized(
    ("--minutes", "0.003", "--num-prompts", "20", "--max-tokens", "8"),
    ("--minutes", "0.03", "--num-prompts", "40", "--max-tokens", "16"),
)
SHORT = (*FEW, "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def trained(quire, folder):
    result = quire("train-heads", "quire-tiny", str(folder / "eagle3"), *SHORT)
    assert result.returncode == 0, result.stderr
    return result


def test_a_head_and_its_report_are_written(trained, folder):
    assert "tokens a round; written to" in trained.stdout
    report = json.loads((folder / "eagle3" / "acceptance.json").read_text())
    assert len(report["equal"]) == len(report["kept"]) == 5
    assert report["progress"]["steps"] >= 1
    config = json.loads((folder / "eagle3" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert (folder / "eagle3" / "model.safetensors").stat().st_size > 1e6


def test_the_same_command_goes_on(quire, trained, folder):
    first = json.loads((folder / "eagle3" / "acceptance.json").read_text())
    result = quire("train-heads", "quire-tiny", str(folder / "eagle3"), *SHORT)
    assert result.returncode == 0, result.stderr
    assert json.loads((folder / "eagle3" / "acceptance.json").read_text()) == first


def test_other_settings_need_another_work_folder(quire, trained, folder):
    options = (*SHORT, "--depth", "2")
    result = quire("train-heads", "quire-tiny", str(folder / "eagle3"), *options)
    assert result.returncode == 1
    assert "the settings must be those of the training" in result.stderr


@pytest.mark.parametrize("lines", ["", '{"messages": 3}\n', '{"text": "no"}\n', "{broken\n"])
def test_prompts_that_are_none_are_refused(quire, tmp_path, lines):
    (tmp_path / "prompts").write_text(lines)
    options = ("--prompts", str(tmp_path / "prompts"))
    result = quire("train-heads", "quire-tiny", str(tmp_path / "out"), *SHORT, *options)
    assert result.returncode == 1
    assert "[train-heads]" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_prompts_of_a_file_are_answered(quire, tmp_path):
    lines = ["What is 2 + 3?", json.dumps({"prompt": "The capital of"})]
    lines += [json.dumps({"messages": [{"role": "user", "content": "Name an animal."}]})]
    (tmp_path / "prompts").write_text("\n".join(7 * lines))
    options = ("--prompts", str(tmp_path / "prompts"), "--method", "medusa")
    result = quire("train-heads", "quire-tiny", str(tmp_path / "out"), *SHORT, *options)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "medusa_lm_head.safetensors").exists()


def test_without_torch_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"quire\[train\]"):
        train_heads.main(["quire-tiny", str(tmp_path)], standalone_mode=False)

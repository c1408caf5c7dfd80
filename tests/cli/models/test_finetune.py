"""``quire finetune``: from a model and a text to a folder that loads."""

import json
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from quire.checkpoints.checkpoint import Checkpoint
from quire.cli.models.finetune import finetune
from quire.core.errors import ConfigError
from quire.models.loader import open_checkpoint
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.store.hub import resolve_model
from tests.lazy_packages import lazy_package
from tests.sizes import sized

for name in ("torch", "transformers", "peft"):
    lazy_package(name)

SOURCE = resolve_model("quire-tiny")
DATA = str(SOURCE / "eval" / "calibration.jsonl")
#: Conversations of the text that short runs read.
FEW_LINES = 60
SHORT = ("--steps", "3", "--batch-size", "2", "--sequence-length", "64", "--threads", "1")
#: Steps, and windows of each: as few as still make weights better than rounded ones.
LONGER = sized(("8", "4"), ("12", "4"))
QAT = ("--method", "qat", "--data", DATA)
QLORA = ("--method", "qlora", "--data", DATA)


def run(source, out, *options):
    """Run the command in this process, which has imported what it needs."""
    finetune.main([str(source), str(out), *options], standalone_mode=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("finetuned")


@pytest.fixture(scope="module")
def trained(folder, few):
    """Return folders of the same training at 3 bits, in two formats."""
    for name in ("floats", "gptq"):
        options = ("--bits", "3", "--format", name, "--learning-rate", "3e-4")
        steps = ("--steps", LONGER[0], "--batch-size", LONGER[1])
        run("quire-tiny", folder / name, "--method", "qat", *few[2:], *options, *steps)
    return {name: folder / name for name in ("floats", "gptq")}


@pytest.fixture(scope="module")
def few(folder):
    """Return the options of a run on little text."""
    path = folder / "few.jsonl"
    path.write_text("\n".join(Path(DATA).read_text().split("\n")[:FEW_LINES]))
    return ("--method", "qlora", "--data", str(path), *SHORT)


@pytest.fixture(scope="module")
def perplexity(quire, folder):
    """Return a function that measures a model on held-out text, as long as tells it apart."""
    text = (SOURCE / "eval" / "heldout.txt").read_text()
    path = folder / "heldout.txt"
    path.write_text(text[: sized(6_000, len(text))])

    def measure(model):
        flags = ("--json", "--threads", "1")
        result = quire("eval", str(model), "--perplexity", str(path), *flags)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["text"]["perplexity"]["value"]

    return measure


def test_trained_weights_are_better_than_rounded_ones(quire, trained, perplexity, tmp_path):
    plain = tmp_path / "rtn"
    result = quire("quantize", "quire-tiny", str(plain), "--method", "rtn", "--bits", "3")
    assert result.returncode == 0, result.stderr
    made = perplexity(trained["gptq"]), perplexity(plain)
    assert made[0] < 0.995 * made[1]


def test_floats_round_to_what_the_other_format_holds(trained):
    floats = Checkpoint(trained["floats"])
    rounded = open_checkpoint(trained["gptq"], "float32", None).tensors
    modules = [n for n in floats.names if n.endswith("_proj.weight")]
    assert len(modules) == 42
    for name in modules:
        weight = np.array(floats.tensor(name).float32())
        want = quantize_rtn(name, weight, IntegerGrid(3, 128, search=False)).float32()
        np.testing.assert_array_equal(rounded.tensor(name).float32(), want)


def test_what_is_not_trained_is_the_source_s(trained):
    source, made = Checkpoint(SOURCE), Checkpoint(trained["gptq"])
    others = [name for name in source.names if not name.endswith("_proj.weight")]
    for name in others:
        assert source.entry(name).dtype == made.entry(name).dtype
        np.testing.assert_array_equal(source.tensor(name).array, made.tensor(name).array)


def test_the_card_says_what_was_done(trained):
    card = (trained["gptq"] / "README.md").read_text()
    assert f"{LONGER[0]} steps of {LONGER[1]} windows of 64 tokens" in card
    assert "before the first step" in card
    assert not (trained["gptq"] / ".unfinished").exists()


def test_a_merged_model_loads_and_can_be_quantized(quire, folder, few, perplexity, tmp_path):
    out = folder / "merged"
    result = quire("finetune", "quire-tiny", str(out), *few, "--merge", "--rank", "4")
    assert result.returncode == 0, result.stderr
    assert "base and adapter as floats" in result.stdout
    names = {path.name for path in (out / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert "before and after" in (out / "README.md").read_text()
    result = quire("quantize", str(out), str(tmp_path / "again"), "--method", "rtn")
    assert result.returncode == 0, result.stderr
    assert 1 < perplexity(tmp_path / "again") < 2


def test_an_adapter_alone_is_written_in_peft_s_layout(folder, few):
    out = folder / "adapter"
    run("quire-tiny", out, *few)
    names = {path.name for path in out.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "quire-tiny"


def test_a_run_stopped_while_it_writes_goes_on(few, folder, monkeypatch):
    """The second start makes floats anew, newer than those that were being rounded."""
    from quire.cli.models import finetune_results

    def interrupt(*_):
        raise KeyboardInterrupt

    out, options = folder / "stopped", ("--method", "qat", *few[2:])
    with monkeypatch.context() as patch:
        patch.setattr(finetune_results, "write_card", interrupt)
        with pytest.raises(click.Abort):
            run("quire-tiny", out, *options)
    assert (out / ".unfinished" / "training.pt").exists()
    with pytest.raises(ConfigError, match="unfinished run of other settings"):
        run("quire-tiny", out, *options, "--seed", "2")
    run("quire-tiny", out, *options)
    assert (out / "README.md").exists()
    assert not (out / ".unfinished").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*QAT, "--rank", "4"), "--rank must come with --method qlora"),
        ((*QLORA, "--bits", "4"), "--bits must come with --method qat"),
        ((*QLORA, "--merge-into", "nf4"), "--merge-into must come with --merge"),
        ((*QAT, "--sequence-length", "2048", "--data", "short.txt"), "at least 2048 tokens"),
        ((*QAT, "--data", "nothing.txt"), "must be a file of UTF-8 text"),
        ((*QAT, "--learning-rate", "7"), "--learning-rate must be"),
        ((*QAT, "--bits", "5"), "--bits must"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ConfigError) as refused:
        run("quire-tiny", "out", *options)
    assert message in str(refused.value)


def test_a_gguf_file_is_refused(gguf, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(gguf)
    with pytest.raises(ConfigError, match="must be a folder of safetensors; got file"):
        run(tmp_path / "tiny.gguf", "out", *QAT)


def test_a_quantized_source_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="which is quantized"):
        run(trained["gptq"], tmp_path, *QLORA)


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"^\[finetune\] OUT must be a new or an empty folder"):
        run("quire-tiny", tmp_path, *QAT)


@pytest.mark.parametrize("name", ["torch", "peft"])
def test_without_the_extra_it_is_named(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"got no {name}\. pip install 'quire\[train\]'"):
        run("quire-tiny", tmp_path, *QAT)

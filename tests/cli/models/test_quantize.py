"""``quire quantize``: what it takes, what it writes, what it refuses, and what quality it keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.safetensors_writer import TensorData
from quire.cli.main import run
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors
from quire.quantizing.output import write_weights
from quire.quantizing.resumable_run import stored_data
from quire.store.hub import resolve_model
from tests.quantizing.stored_values import FEW, files_of, quantized_names, values_of
from tests.sizes import sized

TINY = resolve_model("quire-tiny")
ONE = ("--threads", "1")
RTN = ("--method", "rtn", "--group-size", "32", *ONE)
GPTQ = ("--method", "gptq", "--group-size", "32", *FEW, *ONE)


def quantize(source: Path | str, out: Path, *options: str) -> int:
    return run(["quantize", str(source), str(out), *options])


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    """The beginning of quire-tiny's held-out text."""
    path = tmp_path_factory.mktemp("text") / "heldout.txt"
    path.write_text((TINY / "eval" / "heldout.txt").read_text()[: sized(5_000, 12_000)])
    return path


@pytest.fixture(scope="module")
def ratio(tmp_path_factory, heldout):
    """Return a function that quantizes quire-tiny and returns perplexity over the source's."""
    folder = tmp_path_factory.mktemp("ratio")

    def measure(*options: str) -> float:
        out, report = folder / "-".join(options), folder / "report.json"
        assert quantize(TINY, out, *options, *ONE) == 0
        reference = ("--reference", str(TINY), "--reference-dtype", "float32")
        text = ("--perplexity", str(heldout), "--output", str(report))
        assert run(["eval", str(out), *reference, *text, *ONE]) == 0
        return json.loads(report.read_text())["comparison"]["ratio"]["value"]

    return measure


def test_eight_bits_cost_next_to_nothing(ratio):
    assert 0.995 < ratio("--method", "rtn", "--bits", "8") <= 1.005


def test_gptq_costs_less_than_rounding(ratio):
    few = ("--samples", sized("8", "16"), "--sample-length", "256")
    rounded = ratio("--method", "rtn", "--bits", "3")
    assert rounded > 1.02
    assert ratio("--method", "gptq", "--bits", "3", *few) - 1 < 0.7 * (rounded - 1)


def test_tokenizer_and_card_lie_with_the_weights(checkpoint, tmp_path, capsys):
    source, out = shutil.copytree(checkpoint(), tmp_path / "source"), tmp_path / "out"
    for name in ("weights.bin", ".hidden", "model.safetensors.index.json.bak"):
        (source / name).write_text("x")
    assert quantize(source, out, *GPTQ) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "README.md", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors.index.json.bak",
    }  # fmt: skip
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    card = (out / "README.md").read_text()
    assert card.startswith(f"---\nbase_model: {source}\ntags: [quantized, gptq]\n---\n")
    for line in (
        "21 matrices by gptq, 4 bits, groups of 32.",
        "Calibrated on 8 samples of 128 tokens of heldout.txt.",
        "Quality was not measured",
        "| layer | self_attn.q_proj |",
    ):
        assert line in card
    assert capsys.readouterr().out == f"{out}: 0.2 MB, 21 matrices quantized\n"


def test_the_card_says_what_was_measured(tmp_path, heldout):
    out = tmp_path / "out"
    assert quantize(TINY, out, "--method", "rtn", "--measure", str(heldout), *ONE) == 0
    card = (out / "README.md").read_text()
    assert "On heldout.txt, " in card
    for row in ("| perplexity | 1.", "| ratio | ", "| same best token | 0.9"):
        assert row in card


def test_a_recipe_says_which_matrix_has_what(checkpoint, tmp_path):
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    recipe.write_text(
        '[[rule]]\nmatch = "*.layers.0.*"\nskip = true\n'
        '[[rule]]\nmatch = "*.down_proj"\nbits = 8\ngroup_size = 64\n'
        '[[rule]]\nmatch = "*.o_proj"\nmethod = "rtn"\n'
    )
    options = ("--method", "gptq", *GPTQ[2:], "--format", "compressed-tensors")
    assert quantize(checkpoint(), out, *options, "--recipe", str(recipe)) == 0
    tensors = open_tensors(out, read_model_config(out))
    found = {name: tensors.tensor(name) for name in quantized_names(out)}
    assert len(found) == 2 * 7
    for name, matrix in found.items():
        is_down = name.endswith("down_proj.weight")
        assert (matrix.bits, matrix.group_size) == ((8, 64) if is_down else (4, 32)), name
    card = (out / "README.md").read_text()
    assert "10 matrices by gptq, 4 bits, groups of 32; 2 matrices by rtn" in card
    skipped, before = values_of(out), values_of(checkpoint())
    name = "model.layers.0.mlp.down_proj.weight"
    assert (skipped[name] == before[name]).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not TOML", "--recipe must be TOML"),
        ("bits = 4\n", "must hold [[rule]] tables and nothing else"),
        ("[[rule]]\nbits = 4\n", "must have match, a pattern of names"),
        ('[[rule]]\nmatch = "*"\nbit = 4\n', "must have fields of match, skip, method"),
        ('[[rule]]\nmatch = "*"\nbits = "4"\n', "bits of rule 1"),
        ('[[rule]]\nmatch = "*"\nbits = 5\n', "--bits must be one of"),
        ('[[rule]]\nmatch = "*.no_proj"\nbits = 4\n', "must fit a matrix of the model"),
        ('[[rule]]\nmatch = "*"\nskip = true\n', "a matrix must be left to quantize"),
    ],
)
def test_a_recipe_that_is_none_is_refused(checkpoint, tmp_path, capsys, text, reason):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text)
    assert quantize(checkpoint(), tmp_path / "out", *RTN, "--recipe", str(recipe)) == 1
    _one_sentence(capsys.readouterr().err, reason)
    assert not (tmp_path / "out").exists()


def test_shards_give_what_one_file_gives(checkpoint, tmp_path):
    source = shutil.copytree(checkpoint(), tmp_path / "source")
    stored = Checkpoint(source)
    tensors: dict[str, TensorData] = {name: stored_data(stored, name) for name in stored.names}
    (source / "model.safetensors").rename(tmp_path / "whole.safetensors")
    write_weights(source, tensors, lambda count: None, shard_bytes=100_000)
    assert len(list(source.glob("model-*.safetensors"))) > 2
    assert quantize(checkpoint(), tmp_path / "one", *GPTQ) == 0
    assert quantize(source, tmp_path / "many", *GPTQ) == 0
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_a_source_must_be_a_checkpoint_of_floats(checkpoint, tmp_path, gguf, capsys):
    file, out = tmp_path / "model.gguf", tmp_path / "out"
    file.write_bytes(gguf)
    assert quantize(file, out, *RTN) == 1
    _one_sentence(capsys.readouterr().err, "SOURCE must be a folder of safetensors; got file")
    assert quantize(checkpoint(), tmp_path / "first", *RTN) == 0
    capsys.readouterr()
    assert quantize(tmp_path / "first", out, *RTN) == 1
    _one_sentence(capsys.readouterr().err, "quantized already")
    assert quantize(tmp_path / "nothing", out, *RTN) == 1
    _one_sentence(capsys.readouterr().err, "nothing")
    assert quantize(checkpoint("tiny-gpt2"), out, *RTN) == 1
    _one_sentence(capsys.readouterr().err, "Use quire convert")
    assert not out.exists()


def test_calibration_is_a_text_or_chats(checkpoint, tmp_path, capsys):
    chats = tmp_path / "chats.jsonl"
    turns = [
        [{"role": "user", "content": f"Name {n} animals."}, {"role": "assistant", "content": "Cat"}]
        for n in range(400)
    ]
    chats.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(messages[0]["content"] for messages in turns))
    made = []
    for text in (chats, plain):
        out = tmp_path / text.stem
        assert quantize(checkpoint(), out, *GPTQ, "--calibration", str(text)) == 0
        assert f"8 samples of 128 tokens of {text.name}" in (out / "README.md").read_text()
        made.append((out / "model.safetensors").read_bytes())
    assert made[0] != made[1]
    assert "which is all that" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("empty.txt", "", "--calibration must hold text"),
        ("short.txt", "a", "got less than 2 tokens"),
        ("lines.jsonl", '{"text": "good"}\n{"prompt": "bad"}\n', "one of text and messages"),
        ("roles.jsonl", '{"messages": [{"role": 3}]}\n', "must hold texts that can be tokenized"),
    ],
)
def test_calibration_that_is_none_is_refused(checkpoint, tmp_path, capsys, name, text, reason):
    path = tmp_path / name
    path.write_text(text)
    options = (*GPTQ, "--calibration", str(path))
    assert quantize(checkpoint(), tmp_path / "out", *options) == 1
    _one_sentence(capsys.readouterr().err, reason)
    assert not (tmp_path / "out").exists()


def test_fewer_samples_than_asked_for_are_told(checkpoint, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("so it goes " * 100)
    options = (*GPTQ, "--calibration", str(text), "--samples", "100", "--sample-length", "9999")
    assert quantize(checkpoint(), tmp_path / "out", *options) == 0
    assert "calibrated on 1 sample of 1,100 tokens, which is all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("--samples", "0"), 2, "0 is not in the range x>=1"),
        (("--sample-length", "1"), 2, "1 is not in the range x>=2"),
        (("--samples", "many"), 2, "'many' is not a valid integer"),
        (("--bits", "5"), 1, "--bits must be one of 2, 3, 4, 8"),
        (("--group-size", "48"), 1, "--group-size must be 16, a multiple of 32"),
        (("--damping", "0"), 1, "--damping must be over 0 and at most 1"),
        (("--format", "awq", "--bits", "8"), 1, "awq"),
        (("--calibration", "no.txt"), 1, "no.txt"),
        (("--recipe", "no.toml"), 1, "--recipe must be TOML; got no.toml"),
        (("--skip", "*.no_proj"), 1, "must fit a matrix of the model; got *.no_proj"),
    ],
)
def test_settings_that_no_matrix_can_have(checkpoint, tmp_path, capsys, options, code, reason):
    assert quantize(checkpoint(), tmp_path / "out", *GPTQ, *options) == code
    errors = capsys.readouterr().err
    assert reason in errors and "Traceback" not in errors
    assert not (tmp_path / "out").exists()


def test_rounding_looks_at_no_text(checkpoint, tmp_path, capsys):
    assert quantize(checkpoint(), tmp_path / "out", *RTN, "--calibration", "text.txt") == 1
    _one_sentence(capsys.readouterr().err, "must come with a method that looks at calibration text")
    assert quantize(checkpoint(), tmp_path / "out", *RTN, "--act-order") == 1
    _one_sentence(capsys.readouterr().err, "--act-order must come with --method gptq")


def _one_sentence(errors: str, reason: str) -> None:
    *_, last = errors.strip().splitlines()
    assert last.startswith("quire: [") and reason in last, errors
    assert "Traceback" not in errors

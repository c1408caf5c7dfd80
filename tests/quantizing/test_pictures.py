"""A model that reads pictures: its decoder is quantized, its encoder stays what it is."""

import base64
import json

import numpy as np
import pytest

pytest.importorskip("PIL")

from quire import LLM, SamplingParams
from quire.checkpoints.checkpoint import Checkpoint
from quire.cli.main import run
from tools.hostile_pictures import picture
from tools.random_checkpoint import PRESETS, random_checkpoint

ENCODER = ("vision_tower.", "multi_modal_projector.")


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    path = tmp_path_factory.mktemp("llava") / "tiny-llava"
    random_checkpoint(path, PRESETS["tiny-llava"], dtype="bfloat16")
    return path


def answer(folder, seed=0):
    """Return the tokens of an answer to a picture."""
    url = f"data:image/png;base64,{base64.b64encode(picture(seed=seed)).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(folder), memory=64 * 2**20, threads=1) as llm:
        return llm.chat([{"role": "user", "content": content}], params)[0].outputs[0].token_ids


@pytest.mark.parametrize(
    "flags",
    [
        ("--method", "int8"),
        ("--method", "rtn", "--format", "compressed-tensors"),
        ("--method", "rtn", "--format", "awq"),
        ("--method", "nf4"),
    ],
)
def test_the_decoder_is_quantized_and_the_encoder_kept(llava, tmp_path, capsys, flags):
    out = tmp_path / "out"
    assert run(["quantize", str(llava), str(out), *flags]) == 0
    stored, made = Checkpoint(llava), Checkpoint(out)
    kept = {name for name in stored.names if name.startswith(ENCODER)}
    assert kept == {name for name in made.names if name.startswith(ENCODER)}
    for name in kept:
        np.testing.assert_array_equal(made.tensor(name).float32(), stored.tensor(name).float32())
    assert "21 matrices quantized" in capsys.readouterr().out, "seven of each layer"
    assert answer(out) != answer(out, seed=1), "it sees"


def test_other_programs_are_told_that_the_encoder_is_of_floats(llava, tmp_path):
    out = tmp_path / "out"
    flags = ("--method", "rtn", "--format", "compressed-tensors")
    assert run(["quantize", str(llava), str(out), *flags]) == 0
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert "multi_modal_projector.linear_1" in ignored
    assert "vision_tower.encoder.layers.0.self_attn.q_proj" in ignored


def test_the_head_is_left_floats(llava, tmp_path, capsys):
    flags = ("--method", "rtn", "--format", "compressed-tensors", "--quantize-head")
    assert run(["quantize", str(llava), str(tmp_path / "out"), *flags]) == 1
    assert "must come with a model of text" in capsys.readouterr().err

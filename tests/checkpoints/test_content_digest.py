"""What tells checkpoints apart: their content, wherever they lie and whenever they were written."""

from __future__ import annotations

import os
import shutil

from quire.checkpoints.content_digest import content_digest
from tools.random_checkpoint import PRESETS, random_checkpoint


def test_a_copy_elsewhere_is_the_same_and_a_changed_weight_is_not(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    random_checkpoint(first, PRESETS["tiny-llama"])
    shutil.copytree(first, copy)
    weights = next(copy.glob("*.safetensors"))
    os.utime(weights, (0, 0))
    assert content_digest([copy]) == content_digest([first])
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert content_digest([copy]) != content_digest([first])


def test_another_tokenizer_is_another_model(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(name)
    assert content_digest([tmp_path / "a"]) != content_digest([tmp_path / "b"])

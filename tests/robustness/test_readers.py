"""The committed inputs of the readers' fuzz: what they begin from, and what once broke one."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.check_native.readers import TEXT, Readers

INPUTS = Path(__file__).parent / "inputs"
WHOLE = INPUTS / "whole_tokenizer"
FILES = sorted(path for path in INPUTS.glob("*/*") if path.parent != WHOLE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_any_bytes_are_read_or_refused(path, tmp_path):
    Readers(tmp_path, WHOLE).by_name[path.parent.name](path.read_bytes())


def test_each_reader_has_inputs(tmp_path):
    assert {path.parent.name for path in FILES} == set(Readers(tmp_path, WHOLE).by_name)


@pytest.mark.parametrize("path", sorted((INPUTS / "gguf").glob("*.gguf")), ids=lambda p: p.name)
def test_whole_gguf_files_are_loaded(path):
    assert load_model(path, create_backend("cpu", threads=1), max_model_len=16)
    assert load_tokenizer(path).encode("Hello")


def test_the_whole_tokenizer_and_safetensors_file_are_read():
    tokenizer = load_tokenizer(WHOLE)
    assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False)) == TEXT.replace(
        "<s>", ""
    )
    assert len(SafetensorsFile(INPUTS / "safetensors/two_tensors.safetensors").entries) == 2

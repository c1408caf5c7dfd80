"""Which types a mix gives, as llama-quantize chose them for files of the same shapes."""

import json

import pytest

from quire.models.config_reader import read_model_config
from quire.models.gguf_export import GgufExport
from quire.models.gguf_mix import MIXES, Mix
from quire.models.hub import resolve_model
from tools.quantized_fixtures.make_llama_quantize import OUT

THEIRS = json.loads(OUT.read_text())["mixes"]


@pytest.mark.parametrize("name", THEIRS)
def test_types_are_those_of_llama_quantize(name):
    tensors = GgufExport(resolve_model("quire-tiny"), name).tensors
    assert {tensor.name: tensor.layout.name for tensor in tensors} == THEIRS[name]


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K_M", "IQ4_XS"])
def test_pure_files_have_one_type_and_its_substitute(name):
    export = GgufExport(resolve_model("quire-tiny"), name, pure=True)
    found = {tensor.layout.name for tensor in export.tensors if len(tensor.shape) > 1}
    substitute = {"Q2_K": "Q4_0", "Q4_K_M": "Q5_0", "IQ4_XS": "IQ4_NL"}[name]
    assert found == {MIXES[name][0], substitute}


def test_rows_of_no_whole_block_at_all_are_floats():
    config = read_model_config(resolve_model("quire-tiny"))
    assert Mix("Q4_K_M", config).type_of("blk.0.attn_q.weight", 40) == "F16"
    assert Mix("Q4_K_M", config).type_of("blk.0.attn_q.weight", 96) == "Q5_0"
    assert Mix("Q4_K_M", config).type_of("token_embd.weight", 96) == "Q8_0"

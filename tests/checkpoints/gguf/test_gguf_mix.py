"""Which types a mix gives, as llama-quantize chose them for files of the same shapes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_mix import MIXES, Mix
from quire.checkpoints.gguf.importance_matrix import ImportanceEntry, ImportanceMatrix
from quire.core.errors import ConfigError
from quire.models.config.config_reader import read_model_config
from quire.models.gguf.gguf_export import GgufExport
from quire.store.hub import resolve_model
from tools.quantized_fixtures.make_llama_quantize import NEEDY_MIXES, OUT

THEIRS = json.loads(OUT.read_text())["mixes"]


def importance(tmp_path, *, without=()):
    """Of every matrix of quire-tiny, all inputs alike."""
    entries = {
        plan.name: ImportanceEntry(np.ones((1, plan.shape[1]), np.float32), np.ones(1, np.float32))
        for plan in GgufExport(resolve_model("quire-tiny"), "F32").tensors
        if len(plan.shape) == 2 and plan.name not in without
    }
    return ImportanceMatrix(tmp_path / "i.gguf", entries)


@pytest.mark.parametrize("name", THEIRS)
def test_types_are_those_of_llama_quantize(name, tmp_path):
    counts = importance(tmp_path) if name in NEEDY_MIXES else None
    tensors = GgufExport(resolve_model("quire-tiny"), name, importance=counts).tensors
    assert {tensor.name: tensor.layout.name for tensor in tensors} == THEIRS[name]


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K_M", "IQ4_XS"])
def test_pure_files_have_one_type_and_its_substitute(name):
    export = GgufExport(resolve_model("quire-tiny"), name, pure=True)
    found = {tensor.layout.name for tensor in export.tensors if len(tensor.shape) > 1}
    substitute = {"Q2_K": "Q4_0", "Q4_K_M": "Q5_0", "IQ4_XS": "IQ4_NL"}[name]
    assert found == {MIXES[name][0], substitute}


@pytest.mark.parametrize("name", NEEDY_MIXES)
def test_types_of_few_bits_need_an_importance_of_every_matrix(name, tmp_path):
    with pytest.raises(ConfigError, match=r"--imatrix must say .* blk\.0\..* count for IQ\d"):
        GgufExport(resolve_model("quire-tiny"), name)
    counts = importance(tmp_path, without=["blk.2.ffn_up.weight"])
    with pytest.raises(ConfigError, match=r"errors of blk\.2\.ffn_up\.weight count"):
        GgufExport(resolve_model("quire-tiny"), name, importance=counts)


@pytest.mark.parametrize(
    ("name", "tensor", "want"),
    [
        ("IQ2_XXS", "token_embd.weight", "Q2_K"),
        ("IQ2_M", "token_embd.weight", "IQ3_S"),
        ("IQ3_XXS", "token_embd.weight", "IQ3_S"),
        ("TQ2_0", "token_embd.weight", "Q4_K"),
        ("IQ3_M", "token_embd.weight", "IQ3_S"),
        ("IQ1_S", "output.weight", "Q5_K"),
        ("IQ2_XXS", "blk.0.attn_v.weight", "Q4_K"),
        ("IQ3_XS", "blk.0.attn_v.weight", "Q4_K"),
        ("Q4_K_M", "blk.0.attn_qkv.weight", "Q6_K"),
        ("Q4_K_M", "blk.2.attn_qkv.weight", "Q4_K"),
        ("Q2_K", "blk.2.attn_qkv.weight", "Q4_K"),
        ("IQ2_XXS", "blk.1.ffn_down.weight", "Q2_K"),
        ("IQ2_S", "blk.1.ffn_down.weight", "IQ3_S"),
        ("IQ2_S", "blk.2.ffn_down.weight", "IQ2_XS"),
        ("IQ3_M", "blk.1.ffn_down.weight", "Q4_K"),
        ("IQ3_XS", "blk.1.ffn_up.weight", "IQ3_S"),
        ("IQ3_XS", "blk.2.ffn_up.weight", "IQ3_XXS"),
        ("IQ3_XS", "blk.14.ffn_up.weight", "IQ3_S"),
        ("MXFP4_MOE", "blk.2.ffn_up.weight", "Q8_0"),
        ("MXFP4_MOE", "blk.2.ffn_up_exps.weight", "MXFP4"),
    ],
)
def test_rules_that_quire_tiny_does_not_show(name, tensor, want):
    """A model of 16 layers, a head of its own, and four queries to a key."""
    config = read_model_config(resolve_model("quire-tiny"))
    config = replace(config, num_layers=16, num_heads=8, num_kv_heads=2, tie_word_embeddings=False)
    assert Mix(name, config).type_of(tensor, 256) == want


def test_rows_of_no_whole_block_at_all_are_floats():
    config = read_model_config(resolve_model("quire-tiny"))
    assert Mix("Q4_K_M", config).type_of("blk.0.attn_q.weight", 40) == "F16"
    assert Mix("Q4_K_M", config).type_of("blk.0.attn_q.weight", 96) == "Q5_0"
    assert Mix("Q4_K_M", config).type_of("token_embd.weight", 96) == "Q8_0"

"""Families with fused matrices, rows in another order, or norms less 1 are quantized and load."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from quire import LLM, SamplingParams
from quire.cli.main import cli
from quire.core.errors import ConfigError
from tests.quantizing.stored_values import FEW
from tools.random_checkpoint import random_checkpoint

SHAPE = {
    "vocab_size": 320, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256,
    "max_position_embeddings": 512,
}  # fmt: skip
#: Fused gate and up; fused and in groups; neighbours turn, norms on both sides; norms less 1.
FAMILIES = {
    "Phi3": SHAPE,
    "GPTNeoX": SHAPE | {"num_key_value_heads": 4},
    "Glm4": SHAPE,
    "DeepseekV3": SHAPE
    | {
        "num_key_value_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
    },
    "Gemma3": SHAPE | {"sliding_window": 64, "query_pre_attn_scalar": 32},
}
#: Of 8 bits, which lose less than FP8's three of a mantissa.
METHODS = {
    "gptq": ("--bits", "8", "--group-size", "32"),
    "awq": ("--bits", "8", "--group-size", "32", "--format", "compressed-tensors"),
    "smoothquant": (),
}
TEXT = ("--samples", "4", "--sample-length", "64", *FEW[-2:])


def logprobs(folder, small) -> list[dict[int, float]]:
    llm = LLM(str(folder), max_model_len=128, **small)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=5)
    (output,) = llm.generate([[5, 9, 200, 31, 7, 44, 66, 99, 120] * 3], params)
    llm.shutdown()
    return [{key: one.logprob for key, one in row.items()} for row in output.prompt_logprobs[1:]]


def farthest(left, right) -> float:
    pairs = zip(left, right, strict=True)
    return max(abs(a[key] - b[key]) for a, b in pairs for key in a.keys() & b.keys())


@pytest.fixture(params=FAMILIES)
def source(request, tmp_path):
    fields = {"architectures": [f"{request.param}ForCausalLM"], "model_type": request.param.lower()}
    random_checkpoint(tmp_path / "source", fields | FAMILIES[request.param])
    return tmp_path / "source"


def test_each_method_stays_nearer_than_fp8(source, tmp_path, small) -> None:
    """With a matrix scaled or put in order twice, or not at all, nothing is near."""

    def quantized(method, *flags):
        out = tmp_path / method
        words = ["quantize", str(source), str(out), "--method", method, "--threads", "1", *flags]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
        return farthest(want, logprobs(out, small))

    want = logprobs(source, small)
    most = quantized("fp8")
    for method, flags in METHODS.items():
        assert quantized(method, *flags, *TEXT) < most, method


def test_rotated_outputs_cannot_be_put_in_order(tmp_path) -> None:
    fields = {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4"}
    random_checkpoint(tmp_path / "source", fields | SHAPE)
    words = ["quantize", str(tmp_path / "source"), str(tmp_path / "out"), "--method", "quip", *TEXT]
    with pytest.raises(ConfigError, match="rotates outputs together, and those of model.layers.0"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    done = CliRunner().invoke(cli, [*words, "--skip", "*.q_proj", "--skip", "*.k_proj"])
    assert done.exit_code == 0, done.output

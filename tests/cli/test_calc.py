"""KVC-06 and KVC-07 at the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from quire.cli.calc import calc


def run(*arguments: str) -> list | dict:
    result = CliRunner().invoke(calc, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_table_of_named_models():
    rows = {row["model"]: row for row in run("kv")}
    assert rows["llama-2-7b"]["bytes"] == 2**31
    assert rows["llama-3.1-70b"]["bytes_per_token"] == 327_680
    assert rows["llama-3.1-405b"]["bytes"] == 4096 * 516_096
    assert rows["gpt-3-175b"]["bytes_per_token"] == 4_718_592


def test_context_and_sequences_multiply():
    (row,) = run("kv", "llama-3.1-70b", "--tokens", "128k", "--sequences", "2")
    assert row["bytes"] == 2 * 40 * 2**30


def test_any_config_json(tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (row,) = run("kv", str(tmp_path), "--dtype", "float32")
    assert row["bytes_per_token"] == 2 * 3 * 2 * 16 * 4


@pytest.mark.parametrize(("tokens", "sequences"), [("2048", 804), ("4096", 402)])
def test_concurrency(tokens, sequences):
    arguments = ("--memory", "640000000000", "--weights", "36400000000", "--tokens", tokens)
    assert run("concurrency", "llama-3.1-70b", *arguments)["sequences"] == sequences


def test_unknown_name_is_misuse():
    result = CliRunner().invoke(calc, ["kv", "no-such-model"])
    assert result.exit_code == 2 and "llama-3.1-8b" in result.output

"""The KV-bytes formula and what fits, at the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from quire.cli.calc.calc import calc
from quire.planner.named_shapes import NAMED_SHAPES, REPOSITORY_SHAPES
from quire.store.named_models import catalogue


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
    for path in (tmp_path, tmp_path / "config.json"):
        (row,) = run("kv", str(path), "--dtype", "float32")
        assert row["bytes_per_token"] == 2 * 3 * 2 * 16 * 4


def test_the_embedded_model_and_the_engines_name_of_fp8():
    (row,), (half,) = run("kv", "quire-tiny"), run("kv", "quire-tiny", "--dtype", "fp8")
    assert row["bytes_per_token"] == 2 * half["bytes_per_token"] == 2 * 6 * 4 * 32 * 2


@pytest.mark.parametrize(("tokens", "sequences"), [("2048", 804), ("4096", 402)])
def test_concurrency(tokens, sequences):
    arguments = ("--memory", "640000000000", "--weights", "36400000000", "--tokens", tokens)
    assert run("concurrency", "llama-3.1-70b", *arguments)["sequences"] == sequences


def test_where_the_memory_of_a_card_goes():
    """A model of 70B over four cards of 80 GB: 35, 35, 2 and 8 GB of each."""
    arguments = ("--memory", "80GB", "--scratch", "2GB", "-tp", "4")
    uses = run("memory", "llama-3.1-70b", *arguments)
    assert uses.pop("blocks") == 26491
    gigabytes = {name: round(use["bytes"] / 1e9) for name, use in uses.items()}
    assert gigabytes == {"weights": 35, "KV": 35, "scratch": 2, "headroom": 8}
    assert sum(use["bytes"] for use in uses.values()) == 80 * 10**9
    assert sum(round(10 * use["percent"]) for use in uses.values()) == 1000
    shown = CliRunner().invoke(calc, ["memory", "llama-3.1-70b", *arguments]).output
    assert "KV cache: 26,491 blocks of 16 tokens, 423,856 in all" in shown


def test_weights_that_do_not_fit_are_misuse():
    """On two cards the weights alone take 70.6 GB of each."""
    arguments = ["memory", "llama-3.1-70b", "--memory", "80GB", "--scratch", "2GB"]
    two = run(*arguments, "-tp", "2")
    assert two["KV"]["bytes"] == 0
    one = CliRunner().invoke(calc, arguments)
    assert one.exit_code == 2 and "weights (141.1 GB)" in one.output
    heads = CliRunner().invoke(calc, [*arguments, "-tp", "3"])
    assert heads.exit_code == 2 and "must divide 8 KV heads; got 3" in heads.output


def test_a_fraction_of_what_is_free():
    arguments = ("llama-3.1-8b", "--memory", "40GB", "--scratch", "2GB", "--free-fraction", "0.85")
    kv_bytes = run("concurrency", *arguments)["kv_bytes"]
    assert kv_bytes == int(0.85 * (40 * 10**9 - 16_060_522_496 - 2 * 10**9))


@pytest.mark.parametrize(
    "flags",
    [
        ("--fraction", "0.5", "--free-fraction", "0.9"),
        ("--weights", "1", "--weight-dtype", "float16"),
    ],
)
def test_a_flag_that_would_count_for_nothing_is_refused(flags):
    result = CliRunner().invoke(calc, ["concurrency", "llama-3.1-8b", "--memory", "40GB", *flags])
    assert result.exit_code == 2 and flags[0] in result.output and flags[2] in result.output


def test_the_weights_of_named_models_are_known():
    """They had to be given by hand."""
    for model, shape in NAMED_SHAPES.items():
        given = str(2 * shape.num_parameters)
        assert run("concurrency", model, "--memory", "1TB") == run(
            "concurrency", model, "--memory", "1TB", "--weights", given
        )
    assert (
        run("memory", "llama-2-7b", "--memory", "80GB", "--weight-dtype", "float32")["weights"]
        == run("memory", "llama-2-7b", "--memory", "80GB", "--weights", "26953662464")["weights"]
    )


def test_the_weights_of_a_checkpoint_are_counted():
    kept = run("memory", "quire-tiny", "--memory", "1GB")["weights"]["bytes"]
    wide = run("memory", "quire-tiny", "--memory", "1GB", "--weight-dtype", "float32")
    assert 1.8 * kept < wide["weights"]["bytes"] < 2 * kept


def test_unknown_name_is_misuse():
    result = CliRunner().invoke(calc, ["kv", "no-such-model"])
    assert result.exit_code == 2 and "llama-3.1-8b" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        "kv llama-3.1-8b --tokens 0",
        "kv llama-3.1-8b --tokens -5",
        "kv llama-3.1-8b --sequences -1",
        "concurrency llama-3.1-8b --memory 8GiB --weights 1GiB --tokens 0",
        "concurrency llama-3.1-8b --memory -8GiB --weights 1GiB",
        "concurrency llama-3.1-8b --memory 8GiB --weights -1GiB",
        "concurrency llama-3.1-8b --memory 8GiB --weights 1GiB --fraction nan",
    ],
)
def test_numbers_that_cannot_be_are_misuse(arguments):
    """Nothing of them was refused: sizes below zero, a division by zero, nan of all memory."""
    result = CliRunner().invoke(calc, arguments.split())
    assert result.exit_code == 2, result.output
    assert "Invalid value" in result.output


def test_columns_stay_apart_however_long_a_number_is():
    result = CliRunner().invoke(calc, ["kv", "llama-3.1-8b", "--tokens", "99999999t"])
    head, row = result.output.splitlines()[-2:]
    assert len(head) == len(row)
    assert len(row.split()) == 5


def test_the_catalogue_s_names_were_unknown():
    """``quire list --catalogue`` shows names that ``quire calc`` refused."""
    (row,), (known,) = run("kv", "qwen3:0.6b"), run("kv", "qwen3-0.6b")
    assert row["bytes"] == known["bytes"]
    assert run("kv", "qwen3")[0]["bytes"] == run("kv", "Qwen/Qwen3-4B")[0]["bytes"]
    shown = CliRunner().invoke(calc, ["kv", "qwen3:0.7b"])
    assert shown.exit_code == 2 and "Did you mean qwen3:" in shown.output


def test_weights_of_the_catalogue_are_those_of_its_files():
    file, floats = (
        run("memory", "qwen3:0.6b", "--memory", "8GB", *more)["weights"]["bytes"]
        for more in ((), ("--weight-dtype", "bfloat16"))
    )
    assert (file, floats) == (catalogue()["qwen3:0.6b"].nbytes, 2 * 596_049_920)


@pytest.mark.parametrize("name", REPOSITORY_SHAPES)
def test_shapes_have_the_parameters_that_they_are_said_to_have(name):
    shape = REPOSITORY_SHAPES[name]
    rows = shape.hidden_size * shape.head_dim * (shape.num_heads + shape.num_kv_heads) * 2
    rows += 3 * shape.hidden_size * shape.intermediate_size + 2 * shape.hidden_size
    if "Qwen2.5" in name or "Distill-Qwen" in name:  # biases
        rows += shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
    if "Qwen3" in name:  # norms of queries and keys
        rows += 2 * shape.head_dim
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    assert shape.num_parameters == shape.num_layers * rows + ends + shape.hidden_size


def test_every_name_of_the_catalogue_has_a_shape_but_one():
    unknown = {name for name, one in catalogue().items() if one.floats not in REPOSITORY_SHAPES}
    assert unknown == {"minicpm5:1b"}

"""What ``quire serve --dry-run`` tells."""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner

from quire.checkpoints.embedded import ASSETS
from quire.cli.main import run
from quire.cli.serve import serve
from quire.core.errors import ConfigError


def tell(*arguments: str) -> str:
    result = CliRunner().invoke(serve, [*arguments, "--dry-run"])
    assert result.exit_code == 0, result.output
    return result.output


def test_ranks_memory_exchanges_and_links_are_told():
    text = tell("quire-tiny", "-tp", "2", "-pp", "2")
    assert "stage 0: layers 0 to 2, ranks 0, 1: 2 shards of each layer" in text
    assert "stage 1: layers 3 to 5, ranks 2, 3: 2 shards of each layer" in text
    assert text.count("\nrank ") == 4 and "buffers" in text
    assert "a token's forward exchanges" in text
    assert "over 10 Gbit/s Ethernet" in text and "NVLink" not in text  # these are CPUs
    assert "it fits one process" in text


def test_fewer_messages_where_sums_may_be_divided():
    assert "12 x all_reduce" not in tell("quire-tiny", "-tp", "2")
    text = tell("quire-tiny", "-tp", "2", "--no-exact-tensor-parallel")
    assert "6 x all_reduce, attention's outputs" in text


def test_ranks_of_several_machines_are_told_with_what_is_between_them():
    text = tell("quire-tiny", "-tp", "2", "-pp", "2", "-n", "2", "-r", "1")
    assert "machine 0: ranks 0, 1, rank 0 with the server" in text
    assert "machine 1, this one: ranks 2, 3, which go to 127.0.0.1" in text
    first = text[text.index("\nover ") :]
    assert first.startswith("\nover shared memory of one machine")
    text = tell("quire-tiny", "-tp", "4", "-n", "2")
    assert text.index("over 10 Gbit/s") < text.index("over shared memory")
    assert "warning: 4 shards of each layer over 10 Gbit/s Ethernet" in text


def test_one_of_each_is_in_the_singular():
    """It said "ranks 1", "layers 5 to 5" and "1 blocks of 1 tokens"."""
    text = tell("quire-tiny", "-pp", "2", "--stage-layers", "5,1", "-n", "2")
    assert "machine 0, this one: rank 0, with the server\n" in text
    assert "machine 1: rank 1, which goes to 127.0.0.1\n" in text
    assert "stage 0: layers 0 to 4, rank 0: whole layers" in text
    assert "stage 1: layer 5, rank 1: whole layers" in text
    text = tell("quire-tiny", "--kv-cache-size", "2 blocks", "--max-model-len", "1")
    assert (
        "KV cache: 1 block of 16 tokens in " in text and "sequences at once: 1 of 1 token\n" in text
    )


def test_one_process_has_nothing_to_exchange():
    text = tell("quire-tiny")
    assert text.startswith("quire-tiny: one process\n")
    assert "KV cache: " in text and "exchanges" not in text


def test_every_model_is_told():
    text = tell("quire-tiny", "quire-tiny-vision")
    assert "quire-tiny: one process" in text and "quire-tiny-vision: one process" in text


def test_a_model_that_is_not_there_is_said():
    result = CliRunner().invoke(serve, ["no/such-folder/model", "--dry-run"])
    assert result.exit_code != 0


def test_pickles_are_refused_as_a_start_refuses_them(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ASSETS / "quire-tiny" / name, tmp_path)
    assert "KV cache: " in tell(str(tmp_path))  # weights may come yet
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    result = CliRunner().invoke(serve, [str(tmp_path), "--dry-run"])
    assert "weights must be safetensors; got pytorch_model.bin" in str(result.exception)


def test_rounding_what_is_rounded_is_refused_as_a_start_refuses_it(tmp_path):
    path = tmp_path / "tiny.gguf"
    assert run(["convert", "quire-tiny", str(path), "--type", "q8_0"]) == 0
    assert "KV cache: " in tell(str(path))
    result = CliRunner().invoke(serve, [str(path), "--quantization", "int4", "--dry-run"])
    assert "--quantization needs a checkpoint of floats" in str(result.exception)


def test_where_layers_are_placed_is_told():
    small = ("--max-model-len", "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "128")
    text = tell("quire-tiny", *small, "--device-map", "auto")
    assert "quire-tiny: one process\ndevice_map = one stage: cpu layers 0 to 5" in text
    text = tell("quire-tiny", *small, "--dtype", "float32", "--device-map", "auto",
        "--max-memory", "cpu=14MiB,reference=1GiB")  # fmt: skip
    assert "device_map = 2 stages: cpu layers 0 to 2 (" in text
    assert "stage 1: layers 3 to 5, rank 1: whole layers" in text


@pytest.mark.parametrize("last", [["--dry-run"], []], ids=["dry run", "start"])
@pytest.mark.parametrize("flags", ["-dp 3 -ep", "-dp 3 -pp 2 -ep", "-dp 3 -n 3 -ep"])
def test_experts_are_not_divided_between_engines(checkpoint, flags, last):
    words = [str(checkpoint("tiny-mixtral")), *flags.split(), *last]
    said = CliRunner().invoke(serve, words)
    assert said.exit_code == 2 and "Leave --enable-expert-parallel out" in said.output
    assert "--tensor-parallel-size 3 --enable-expert-parallel." in said.output


def test_each_engine_divides_its_experts_over_its_ranks(checkpoint):
    text = tell(str(checkpoint("tiny-mixtral")), "-dp", "2", "-tp", "2", "-ep")
    assert "2 engines, with requests of their own\neach of them:" in text
    assert "2 ranks: 2 shards of each layer" in text and "rank 1: weights" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data-parallel-size", "2147483648"), "--data-parallel-size must be at most 1024"),
        (("--tensor-parallel-size", "9" * 400), "must be below 2^63"),
        (("--nnodes", "1025"), "--nnodes must be at most 1024"),
        (("--max-num-seqs", "9" * 400), "--max-num-seqs must be below 2^63"),
        (("--free-gpu-memory-fraction", "1e-320"), "must be in (0, 1], 1e-06 at least"),
        (("--spec-method", "draft_model"), '"model" must be given for method draft_model'),
        (("--api-key-file", "/dev/zero"), "got more than 16 MiB"),
    ],
)
def test_numbers_and_files_without_end_are_refused_in_a_sentence(arguments, words):
    """Two milliards of engines took all memory of the machine, the others were tracebacks."""
    answer = CliRunner().invoke(serve, ["quire-tiny", "--dry-run", *arguments])
    told = f"{answer.output}{answer.exception}"
    assert answer.exit_code in (1, 2) and words in told and "Traceback" not in told
    assert isinstance(answer.exception, SystemExit | ConfigError)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--tool-call-parser", "hermess"), "got hermess. Did you mean hermes?"),
        (("--reasoning-parser", "deepsek_r1"), "got deepsek_r1. Did you mean deepseek_r1?"),
        (("--classifier-from-token", "no"), "must be given for two or more different tokens"),
        (("--score-template", "none.jinja"), "got none.jinja"),
    ],
)
def test_flags_of_answers_were_refused_after_the_weights_were_read(flags, said):
    """A start loaded the model first, and ``--dry-run`` said that all was well."""
    result = CliRunner().invoke(serve, ["quire-tiny", *flags, "--dry-run"])
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)

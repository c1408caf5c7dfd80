"""Flags stand for config fields, and nothing else does."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from quire.cli.flags.engine_flags import ConfigOption, EngineCommand, engine_flags
from quire.core.counts import parse_count
from quire.settings.config import EngineConfig

FLAGS = [
    "--model",
    "--served-model-name",
    "--tokenizer",
    "--revision",
    "--allow-special-tokens-in-content",
    "--dtype",
    "--quantization",
    "--quantization-group-size",
    "--quantization-overrides",
    "--activations",
    "--packed-weights-cache",
    "--max-model-len",
    "--generation-config",
    "--override-generation-config",
    "--chat-template",
    "--default-chat-template-kwargs",
    "--max-logprobs",
    "--disable-any-whitespace",
    "--limit-mm-per-prompt",
    "--allowed-media-domains",
    "--allowed-local-media-path",
    "--block-size",
    "--kv-cache-size",
    "--memory",
    "--gpu-memory-utilization",
    "--free-gpu-memory-fraction",
    "--kv-cache-memory-bytes",
    "--max-tokens-in-paged-kv-cache",
    "--num-gpu-blocks-override",
    "--kv-cache-dtype",
    "--kv-layout",
    "--enable-prefix-caching",
    "--kv-canary",
    "--kv-cache-metrics",
    "--use-cache",
    "--kv-offload-bytes",
    "--kv-offloading-size",
    "--kv-offload-dir",
    "--kv-offload-disk-bytes",
    "--kv-offload-url",
    "--kv-offload-read-only",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--enable-chunked-prefill",
    "--long-prefill-token-threshold",
    "--mixed-prefill-tokens",
    "--target-itl-ms",
    "--scheduling-policy",
    "--batching-type",
    "--speculative-config",
    "--spec-method",
    "--spec-model",
    "--spec-tokens",
    "--speculative-model",
    "--num-speculative-tokens",
    "--speculative-max-model-len",
    "--ngram-prompt-lookup-max",
    "--ngram-prompt-lookup-min",
    "--speculative-draft-tensor-parallel-size",
    "--speculative-disable-by-batch-size",
    "--enable-lora",
    "--max-loras",
    "--max-lora-rank",
    "--max-cpu-loras",
    "--device",
    "--threads",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--stage-layers",
    "--stage-devices",
    "--stage-memory",
    "--device-map",
    "--max-memory",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--num-redundant-experts",
    "--enable-eplb",
    "--eplb-step-interval",
    "--exact-tensor-parallel",
    "--distributed-executor-backend",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--seed",
]


@click.command(cls=EngineCommand)
@engine_flags
@click.option("--port", default=8000, help="TCP port.")
def show(config: EngineConfig, port: int) -> None:
    """Print what was understood."""
    click.echo(f"{config!r} {port}")


def invoke(*args: str) -> str:
    result = CliRunner().invoke(show, args)
    assert result.exit_code == 0, result.output
    return result.output


def test_flags_are_the_fields_in_order():
    # Grows on purpose only: a new setting is a new line here.
    assert [p.opts[0] for p in show.params if isinstance(p, ConfigOption)] == FLAGS


def test_no_flags_are_the_defaults():
    assert invoke() == f"{EngineConfig()!r} 8000\n"


def test_every_kind_of_flag():
    given = invoke(
        "some/model", "--max-model-len", "4k", "--memory", "8GiB", "--no-use-cache",
        "--dtype", "bfloat16", "--gpu-memory-utilization", "0.5", "--seed", "7", "--port", "1",
    )  # fmt: skip
    expected = EngineConfig.from_keywords(
        model="some/model", max_model_len=4096, memory=8 * 2**30, use_cache=False,
        dtype="bfloat16", gpu_memory_utilization=0.5, seed=7,
    )  # fmt: skip
    assert given == f"{expected!r} 1\n"


def test_underscores_were_unknown_flags():
    """vLLM's command takes ``--max_model_len``; here it was no such option."""
    given = invoke("--max_model_len=64", "--no-use_cache", "--served_model_name", "a_b")
    assert given == invoke("--max-model-len", "64", "--no-use-cache", "--served-model-name", "a_b")


@pytest.mark.parametrize("value", ["auto", "-1"])
def test_automatic_length(value):
    assert invoke("--max-model-len", value) == invoke()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--threads", "1.5"], "--threads"),
        (["--dtype", "int3"], "--dtype"),
        (["--pages", "3"], "--pages"),
        (["a", "--model", "b"], "--model"),
    ],
)
def test_misuse_names_the_flag(args, named):
    result = CliRunner().invoke(show, args)
    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("4k", 4096),
        ("4K", 4096),
        ("25.5k", 26112),
        ("1MiB", 2**20),
        ("1mb", 10**6),
        ("8GiB", 2**33),
        ("9007199254740993", 2**53 + 1),
        ("-1", -1),
    ],
)
def test_parse_count(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "4q", "4kk", "5ib", "0x10", "nan", "inf", "1e3"])
def test_parse_count_refuses(text):
    with pytest.raises(ValueError):
        parse_count(text)


def test_help_fits_one_screen():
    output = CliRunner().invoke(show, ["--help"], terminal_width=100).output
    assert len(output.splitlines()) <= 50

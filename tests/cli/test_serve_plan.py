"""What ``quire serve`` refuses before it loads anything, and ``--dry-run`` with the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.checkpoints.embedded import ASSETS
from quire.cli.serve import serve
from quire.core.errors import QuireError
from quire.system.machine import read_machine
from tests.commands import run_quire

#: More than there is; half of it is not.
TOO_MUCH = str(3 * read_machine().total_bytes // 2)
#: Settings that do not go together, and what is said of them.
REFUSED = [
    (["-pp", "9"], "--pipeline-parallel-size must be at most 6, the layers of the model; got 9"),
    (["--disaggregate", "1p"], "--disaggregate must be numbers of engines such as 1p1d; got 1p"),
    (["--disaggregate", "1p1d", "-dp", "2"], "says how many engines there are; got"),
    (["--disaggregate", "1p1d", "--kv-layout", "static"], "moves KV blocks, which are found"),
    (["--disaggregate", "1p1d", "--no-use-cache"], "got --no-use-cache, with which none is found"),
    (["--disaggregate", "1p1d", "--no-enable-prefix-caching"], "got --no-enable-prefix-caching"),
    (["quire-tiny-draft", "--disaggregate", "1p1d"], "--disaggregate must come with one MODEL"),
    (["quire-tiny-draft", "-tp", "2", "--nnodes", "2"], "--nnodes must come with one MODEL"),
    (["quire-tiny-draft", "--memory", "300MiB"], "served together must fit in 300 MiB"),
    (["-dp", "2", "--memory", "60MiB"], "in each of 2 processes"),
    (
        ["-tp", "2", "--memory", "1GiB", "--kv-cache-memory-bytes", "1GiB"],
        "must be at most 958 MiB",
    ),
    (["-dp", "2", "--memory", TOO_MUCH], "--memory must be at most"),
    (["quire-tiny-draft", "--memory", TOO_MUCH], "--memory must be at most"),
    (["-dp", "2", "--spec-method", "eagle", "--spec-model", "/none"], "--speculative-config must"),
    (["--enable-lora", "--lora-modules", "a=/none"], "/none"),
    (["--kv-layout", "static", "--kv-offload-bytes", "1MiB"], "--kv-offload-* keeps blocks"),
    (["--kv-offload-url", "foo://a"], "--kv-offload-url must be redis://, rediss:// or unix://"),
    (["--prefix-cache-isolation", "key"], "must come with API keys; got none"),
]


def told(flags: list[str]) -> tuple[int, str]:
    """Return how a dry run ends, and what it says last."""
    result = CliRunner().invoke(serve, ["quire-tiny", *flags, "--dry-run"])
    lines = result.output.splitlines()
    text = str(result.exception) if isinstance(result.exception, QuireError) else lines[-1]
    return result.exit_code, text.removeprefix("Error: ")


@pytest.mark.parametrize(("flags", "expected"), REFUSED, ids=str)
def test_a_dry_run_refuses_it_in_one_sentence(flags: list[str], expected: str) -> None:
    code, text = told(flags)
    assert code != 0 and expected in text and "\n" not in text


@pytest.mark.parametrize(
    "flags",
    [
        ["-pp", "9"],
        ["--disaggregate", "1p1d", "-dp", "2"],
        ["quire-tiny-draft", "--memory", "300MiB"],
    ],
    ids=str,
)
def test_a_start_refuses_what_a_dry_run_refuses_and_loads_nothing(flags: list[str]) -> None:
    """Two of them were found when ranks or engines were loading, the third by no dry run."""
    started = run_quire("serve", "quire-tiny", *flags, "--port", "0")
    code, text = told(flags)
    assert started.returncode == code == 1
    assert started.stderr == f"quire: {text}\n"


def test_ranks_of_several_models_have_what_they_need() -> None:
    """One process was planned for each model, and two ranks had to do with its memory."""
    flags = ["quire-tiny-draft", "-tp", "2", "--max-num-seqs", "4"]
    result = CliRunner().invoke(serve, ["quire-tiny", *flags, "--dry-run"])
    assert result.exit_code == 0, result.output
    # As for one model alone: all that four sequences of full length use.
    assert result.output.count("of 512 blocks") == 4


def test_the_memory_that_is_named_for_ranks_and_engines_suffices() -> None:
    """What one process lacks was named, though ``--memory`` is divided among all of them."""
    for flags in (["-tp", "2"], ["-dp", "2"], ["-dp", "2", "-pp", "2"]):
        flags = [*flags, "--max-model-len", "2048"]
        _, text = told([*flags, "--memory", "20MiB"])
        memory = text.split("Any of these would fit: --memory ")[1].split(";")[0]
        assert told([*flags, "--memory", memory])[0] == 0
        least = int(memory.removesuffix("MiB"))
        assert told([*flags, "--memory", f"{least - 8}MiB"])[0] == 1


def test_a_part_of_what_is_free_for_kv_is_granted_to_several_models() -> None:
    """A model got the memory for its KV cache, of which half was for the KV cache."""
    flags = ["quire-tiny-draft", "--free-gpu-memory-fraction", "0.5", "--memory", "480MiB"]
    assert told(flags)[0] == 0


def test_adapters_are_planned_with_the_model() -> None:
    """Their memory was found to be missing when the weights were loaded."""
    lora = ["--enable-lora", "--max-loras", "8", "--max-lora-rank", "512", "--memory", "60MiB"]
    code, text = told(lora)
    assert code == 1 and "the KV cache must hold one request" in text


def test_models_whose_blocks_no_engine_finds_are_not_disaggregated(
    checkpoint: Callable[..., Path],
) -> None:
    """Each long prompt was computed twice, and counted as computed apart."""
    flags = [str(checkpoint("tiny-mistral")), "--disaggregate", "1p1d", "--dry-run"]
    result = CliRunner().invoke(serve, flags)
    assert result.exit_code == 1
    assert "needs a model whose KV blocks are found by their content" in str(result.exception)


def test_memory_of_draft_heads_is_the_first_ranks(tmp_path: Path) -> None:
    """A dry run did not plan ranks one by one."""
    config = json.dumps({"method": "eagle", "model": str(ASSETS / "quire-tiny-heads" / "eagle")})
    flags = ["-tp", "2", "--speculative-config", config, "--dry-run"]
    output = CliRunner().invoke(serve, ["quire-tiny", *flags]).output
    first, second = (line.split() for line in output.splitlines() if line.startswith("rank "))
    assert float(first[3]) > float(second[3])

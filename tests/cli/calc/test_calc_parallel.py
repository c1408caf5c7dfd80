"""How to divide a model, and what frees memory, at the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.calc.calc import calc


def show(arguments: str) -> str:
    result = CliRunner().invoke(calc, arguments.split())
    assert result.exit_code == 0, result.output
    return result.output


def run(arguments: str) -> Any:
    return json.loads(show(f"{arguments} --json"))


def test_a_division_that_is_given():
    found = run("parallel llama-2-70b -tp 4 --no-exact --wire-bytes 2 --link 10gbe")
    reduced = [one for one in found["collectives"] if one["name"] == "all_reduce"]
    assert sum(one["row_bytes"] for one in reduced) == 2_621_440
    assert len(found["ranks"]) == 4
    assert found["seconds"]["10gbe"] > found["seconds"]["nvlink"]
    assert "--pipeline-parallel-size" in found["warning"]


def test_a_division_that_is_chosen():
    found = run("parallel llama-3.1-405b --memory 80GB --weight-dtype fp8")
    assert found["choices"][:2] == [[8, 1, 1], [4, 2, 1]]
    text = show("parallel llama-3.1-8b --memory 80GB")
    assert "do not divide it" in text


def test_layers_are_placed_by_memory():
    found = run("parallel llama-3.1-8b --max-memory gpu=12GB,cpu=64GB")
    assert found["pipeline_parallel_size"] == 2
    totals = [one["weights"] + one["buffers"] + 4096 * one["kv_token"] for one in found["ranks"]]
    assert 11e9 < totals[0] <= 12e9 and totals[1] < 6e9
    text = show("parallel llama-3.1-8b --max-memory gpu=12GB,cpu=64GB")
    assert "device_map = 2 stages: gpu layers 0 to 22 (" in text
    assert "stage 1: layers 23 to 31, rank 1: whole layers" in text
    assert "one stage: gpu" in show("parallel llama-3.1-8b --max-memory gpu=24GB,cpu=64GB")


def test_the_map_of_ranks_is_printed():
    text = show("parallel quire-tiny -tp 2 -pp 2")
    assert "stage 0: layers 0 to 2, ranks 0, 1: 2 shards of each layer" in text
    assert "stage 1: layers 3 to 5, ranks 2, 3: 2 shards of each layer" in text
    assert "a token's forward exchanges" in text and "10 Gbit/s Ethernet" in text


def test_what_frees_memory():
    found = run("fit llama-3.1-8b --memory 24GB --sequences 16 --shared-prefix 2k")
    assert found["needed_bytes"] > found["memory_bytes"]
    assert len(found["strategies"]) == 5 and found["strategies"][0]["fits"]
    text = show("fit llama-3.1-8b --memory 24GB --sequences 16")
    assert "GB too much" in text and "- shorter context: longer requests are refused" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("parallel llama-3.1-8b", "give --memory"),
        ("parallel llama-3.1-8b -pp 33", "must be at most 32"),
        ("parallel llama-3.1-405b --memory 8GB", "must fit in 7.2 GB"),
        ("parallel no-such-model -tp 2", "MODEL must be"),
        ("parallel llama-3.1-8b -tp 2 --max-memory a=1GB", "leave out -tp, -pp and --memory"),
        ("parallel llama-3.1-8b --max-memory 1GB", "--max-memory must be devices"),
        ("parallel llama-3.1-8b --max-memory a=8GB,b=4GB", "got room of a 7.45 GiB, b 3.73 GiB"),
    ],
)
def test_misuse(arguments, message):
    result = CliRunner().invoke(calc, arguments.split())
    assert result.exit_code == 2 and message in result.output

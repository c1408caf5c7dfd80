"""What speculation brings, at the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.calc.calc import calc

DOCS = Path(__file__).parents[3] / "docs" / "speculation.md"


def show(arguments: str) -> str:
    result = CliRunner().invoke(calc, ["spec", *arguments.split()])
    assert result.exit_code == 0, result.output
    return result.output


def run(arguments: str) -> Any:
    return json.loads(show(f"{arguments} --json"))


def test_tokens_and_speedups_as_numbers() -> None:
    report = run("-a 0.5 -a 0.8 -k 4 -k 5 -c 0.05 -c 0.1")
    first, second = report["rounds"]
    assert first == {"acceptance": 0.5, "tokens": {"4": 1.9375, "5": 1.96875}}
    assert second["tokens"]["4"] == pytest.approx(3.3616)
    cells = {(row["draft_cost"], row["acceptance"]): row for row in report["speedups"]}
    assert set(cells) == {(0.05, 0.5), (0.05, 0.8), (0.1, 0.5), (0.1, 0.8)}
    assert cells[0.05, 0.8]["speedup"]["5"] == pytest.approx(2.95, abs=0.005)
    assert cells[0.1, 0.5]["best_tokens"] == 2
    assert "last_batch" not in cells[0.1, 0.5]
    assert report["break_even"][1]["acceptance"]["5"] == pytest.approx(0.334, abs=5e-4)


def test_the_tables() -> None:
    lines = show("-a 0.8 -k 4 -k 8 -c 0.05 -c 1.5").splitlines()
    assert lines == [
        "tokens of a round with K proposed ones",
        "acceptance   K=4   K=8",
        "0.8         3.36  4.33",
        "",
        "speedup where a proposed token costs 0.05 of a step",
        "acceptance    K=4    K=8       best",
        "0.8          2.80   3.09  K=8: 3.09",
        "break-even  0.167  0.286",
        "",
        "speedup where a proposed token costs 1.5 of a step",
        "acceptance    K=4    K=8  best",
        "0.8          0.48   0.33  none",
        "break-even  never  never",
    ]


def test_a_number_of_tokens_given_twice_is_one_column() -> None:
    """The rows had fewer cells than the head, and the table ended in a traceback."""
    assert show("-k 4 -k 8 -k 4") == show("-k 4 -k 8")


def test_five_tokens_at_a_twentieth() -> None:
    lines = show("-a 0.5 -a 0.7 -a 0.8 -a 0.9 -a 0.95 -k 5 -c 0.05").splitlines()
    rows = [line.split() for line in lines[-6:-1]]
    assert [row[1] for row in rows] == ["1.58", "2.35", "2.95", "3.75", "4.24"]


def test_the_batch_up_to_which_it_pays() -> None:
    lines = show("-a 0.3 -a 0.8 -k 4 -c 0.4 --row-cost 0.05 --batch 8").splitlines()
    assert lines[-4] == "acceptance    K=4       best  pays up to"
    assert "8 sequences" in lines[-5]
    assert lines[-3].split() == ["0.3", "0.38", "none", "none"]
    assert lines[-2].split()[-2:] == ["batch", "12"]
    assert "any batch" in show("-a 1 -k 4 -c 0 --row-cost 0.1")
    record = run("-a 0.9 -k 5 -c 0.05 --ridge 206 --batch 34")["speedups"][0]
    assert record["speedup"]["5"] == pytest.approx(3.75, abs=0.005), "free up to the ridge"


def test_what_a_claim_implies() -> None:
    assert show("-a 0.8 -k 4 --claimed 2.3").splitlines() == [
        "a speedup of 2.3 implies that a proposed token costs, of a step",
        "acceptance    K=4",
        "0.8         0.115",
    ]
    assert "cannot be" in show("-a 0.75 -k 8 --claimed 5")
    (record,) = run("-a 0.75 -k 8 --claimed 2.7")
    assert record["draft_cost"] == pytest.approx(0.046, abs=5e-4)


@pytest.mark.parametrize(
    "arguments",
    [
        "-a 1.1",
        "-a nan",
        "-k 0",
        "-k 65",
        "-c -1",
        "-c inf",
        "--row-cost nan",
        "--ridge 0",
        "--claimed 0",
        "--batch 0 --ridge 4",
        "--batch 8",
    ],
)
def test_numbers_that_cannot_be_are_misuse(arguments: str) -> None:
    result = CliRunner().invoke(calc, ["spec", *arguments.split()])
    assert result.exit_code == 2 and "Error" in result.output


def test_the_page_shows_what_is_printed() -> None:
    page = DOCS.read_text("utf-8")
    (command,) = re.findall(r"^quire calc spec (.+)$", page, re.MULTILINE)
    assert f"```\n{show(command)}```" in page

"""Every two settings of a start together: one process's answers, or a refusal in one sentence.

Rows are a covering array of all that may be served (``tests/covering.py``); what may not is refused
by rules that :func:`refusal` repeats. ``--dry-run`` says of each row what the start does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from quire.cli.serve import serve
from tests.commands import run_quire
from tests.covering import cover
from tests.servers import start_server
from tests.sizes import sized

Row = dict[str, str]
#: What a start may be asked for, by its name: a start is one of each. ``DISK`` is a folder.
SETTINGS: dict[str, dict[str, str]] = {
    "models": {"one": "", "two": "quire-tiny-draft", "on demand": "--load-on-demand"},
    "ranks": {"1": "", "tp": "-tp 2", "pp": "-pp 2", "tp x pp": "-tp 2 -pp 2"},
    "engines": {"1": "", "2": "-dp 2", "roles": "--disaggregate 1p1d --disaggregate-tokens 64"},
    "tiers": {"none": "", "ram": "--kv-offload-bytes 8MiB", "disk": "--kv-offload-dir DISK"},
    "layout": {"paged": "", "static": "--kv-layout static", "contiguous": "--kv-layout contiguous"},
    "drafts": {
        "none": "",
        "ngram": "--spec-method ngram",
        "eagle3": "--spec-method eagle3",
        "draft model": "--spec-method draft_model --spec-model quire-tiny-draft",
    },
    "adapters": {"none": "", "lora": "--enable-lora --lora-modules sql=quire-tiny-sql"},
}
COMMON = "--threads 1 --memory 4GiB --max-num-seqs 4 --max-model-len 512"
LONG = "A list of customers, with their names, towns and orders. " * 12
ASKED: tuple[dict[str, Any], ...] = (
    {"prompt": "The capital of France is", "temperature": 0},
    {"prompt": LONG, "temperature": 0},
    {"prompt": LONG + "Name those in Rome.", "temperature": 0.9, "seed": 7},
    {"prompt": "Once upon a time", "temperature": 0.9, "seed": 8, "n": 2},
)


def refusal(row: Row) -> str:
    """Return what is said of a row that cannot be served; empty where it can."""
    several = row["models"] != "one"
    if row["tiers"] != "none" and row["layout"] != "paged":
        return "--kv-offload-* keeps blocks"
    if several and row["engines"] == "roles":
        return "--disaggregate must come with one MODEL"
    if row["engines"] == "roles" and row["layout"] != "paged":
        return "--disaggregate moves KV blocks"
    if several and row["adapters"] == "lora":
        return "--enable-lora must come with one MODEL"
    if row["models"] == "two" and row["drafts"] == "eagle3":  # those of quire-tiny-draft
        return "must name a folder with heads"
    return ""


def covered(*, are_refused: bool) -> list[Row]:
    """Return rows with every two settings that are served together, or refused."""
    every = (dict(zip(SETTINGS, row, strict=True)) for row in itertools.product(*SETTINGS.values()))
    rows = [row for row in every if bool(refusal(row)) is are_refused]
    return [rows[number] for number in cover(__name__, rows)]


#: Of the small circles: two models of two ranks each, and roles without blocks to be found.
_PLAIN = {name: next(iter(values)) for name, values in SETTINGS.items()}
SERVED = [{**_PLAIN, "models": "two", "ranks": "tp"}]
REFUSED = [{**_PLAIN, "engines": "roles", "layout": "static"}]
if sized(False, True):
    SERVED, REFUSED = covered(are_refused=False), covered(are_refused=True)


def flags(row: Row, folder: Path) -> list[str]:
    """Return the command line of a row; the first model is quire-tiny."""
    parts = ["quire-tiny", *(SETTINGS[name][value] for name, value in row.items()), COMMON]
    return [word.replace("DISK", str(folder)) for part in parts for word in part.split()]


def told(arguments: list[str]) -> tuple[bool, str]:
    """Return whether a dry run goes well, and what it says last."""
    result = CliRunner().invoke(serve, [*arguments, "--dry-run"])
    if result.exit_code and not isinstance(result.exception, SystemExit):
        return False, str(result.exception)
    return not result.exit_code, result.output.splitlines()[-1].removeprefix("Error: ")


def answers(address: str, model: str) -> list[Any]:
    """Return texts, token ids and log-probabilities of what is asked of a model."""
    found = []
    with httpx2.Client(base_url=address, timeout=120) as client:
        for asked in ASKED:
            body = {"model": model, "max_tokens": 12, "logprobs": 2, "ignore_eos": True, **asked}
            answer = client.post("/v1/completions", json=body).raise_for_status().json()
            found.append([(choice["text"], choice["logprobs"]) for choice in answer["choices"]])
    return found


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, list[Any]]]:
    """What one process answers of each model, and of the adapter."""
    found = {}
    for name, more in (("quire-tiny", SETTINGS["adapters"]["lora"]), ("quire-tiny-draft", "")):
        with start_server([name, *COMMON.split(), *more.split()]) as server:
            address = server.wait_ready()
            for model in (name, *(("sql",) if more else ())):
                found[model] = answers(address, model)
    yield found


def test_a_dry_run_says_what_a_start_does(tmp_path: Path) -> None:
    for row in (*covered(are_refused=False), *covered(are_refused=True)):
        fits, text = told(flags(row, tmp_path))
        assert fits != bool(refusal(row)), (row, text)
        assert fits or refusal(row) in text, (row, text)


@pytest.mark.parametrize("row", SERVED, ids=lambda row: ", ".join(row.values()))
def test_a_start_answers_as_one_process(
    row: Row, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    with start_server(flags(row, tmp_path / "disk")) as server:
        address = server.wait_ready()
        models = ["quire-tiny"]
        models += ["quire-tiny-draft"] if row["models"] == "two" else []
        models += ["sql"] if row["adapters"] == "lora" else []
        for model in models * 2:  # the second time blocks are found, or loaded from tiers
            assert answers(address, model) == expected[model], (row, model)
        assert server.end() == 0
        assert "Traceback" not in server.stderr


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: ", ".join(row.values()))
def test_a_start_is_refused_in_one_sentence(row: Row, tmp_path: Path) -> None:
    done = run_quire("serve", *flags(row, tmp_path), "--port", "0")
    assert done.returncode in (1, 2) and not done.stdout
    said = [line for line in done.stderr.splitlines() if "[config]" in line]
    assert len(said) == 1 and refusal(row) in said[0]
    assert "loading:" not in done.stderr and "Traceback" not in done.stderr

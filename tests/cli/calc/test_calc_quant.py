"""Which weight format to take: choices, their numbers, and the tables at the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from quire.cli.calc.calc import calc
from quire.planner.advice.cpu_weight_advice import advise_cpu
from quire.planner.advice.measured_formats import MEASURED_FORMATS, MEASURED_METHODS
from quire.planner.advice.named_cards import NAMED_CARDS
from quire.planner.advice.weight_advice import BF16, INT4, ServingLoad
from quire.planner.machine_speed import MachineSpeed

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def show(arguments: str) -> str:
    result = CliRunner().invoke(calc, ["advise-quant", *arguments.split()])
    assert result.exit_code == 0, result.output
    return result.output


def run(arguments: str) -> Any:
    return json.loads(show(f"{arguments} --json"))


@pytest.mark.parametrize(
    ("arguments", "choice", "reason"),
    [
        ("llama-3.1-8b --card h100", "FP8", "1,979 TFLOP/s (2.0 x bf16)"),
        ("llama-3.1-8b --card h100 --batch 64", "FP8", "FP8 first"),
        ("llama-3.1-70b --card b200 --batch 32", "FP8", "FP8 first"),
        ("llama-3.1-70b --card h200 --batch 32", "FP8", "42.9 GB of KV of FP8 fit in 126.9 GB"),
        ("llama-3.1-405b --card h100 -tp 8", "FP8", "fit in 576.0 GB of 8 x H100"),
        ("llama-2-13b --card rtx-4090", "FP8", "FP8 first"),
        ("llama-2-13b --card L4 --batch 4", "INT4 (AWQ or GPTQ)", "rises by 0.08% (AWQ)"),
        ("llama-3.1-70b --card h100", "FP8", "70.6 GB of weights and 1.3 GB of KV"),
        ("llama-3.1-70b --card h100 --batch 8", "INT4 (AWQ or GPTQ)", "in 8 bits do not fit"),
        ("llama-3.1-70b --card h100 --memory 40GB", None, "Nothing fits: even 4 bits need 38.0 GB"),
        ("llama-3.1-70b --card a100-40", None, "which is 2 x A100 40 GB"),
        ("llama-3.1-70b --card rtx-4090", None, "which is 2 x RTX 4090"),
        ("llama-3.1-8b --card a100", "INT4 (AWQ or GPTQ)", "does not multiply FP8"),
        ("llama-3.1-8b --card a100 --batch 39", "INT4 (AWQ or GPTQ)", "reading binds"),
        ("llama-3.1-8b --card a100 --batch 41", "INT4 (AWQ or GPTQ)", "arithmetic binds INT4"),
        (
            "llama-3.1-8b --card a100 --batch 128 --context 1024",
            "INT8 (W8A8)",
            "critical batch, 39.7",
        ),
        ("70b --card a100 --batch 128", "INT8 (W8A8)", "KV is not counted"),
        ("mistral-7b --card rtx-3090 --fraction 0.2", "INT4 (AWQ or GPTQ)", "in 4.8 GB"),
    ],
)
def test_choices(arguments: str, choice: str | None, reason: str) -> None:
    report = run(arguments)
    assert report["choice"] == choice
    assert reason in " ".join(report["reasons"])
    assert all(sentence.endswith(".") for sentence in report["reasons"])
    shown = show(arguments)
    assert shown.startswith(f"choice: {choice or 'none fits'}\n- {report['reasons'][0]}\n")


def test_critical_batches() -> None:
    """989 TFLOP/s over 4.8 TB/s are 206 operations a byte: 53.5 sequences at 4.15625 bits."""
    card = NAMED_CARDS["h200"]
    assert INT4.bits == 4.15625
    assert INT4.critical_batch(card) == pytest.approx(53.5, abs=0.05)
    assert BF16.critical_batch(card) == pytest.approx(206.04, abs=0.005)
    rows = {row["format"]: row for row in run("8B --card h200")["formats"]}
    assert rows["INT4 (AWQ or GPTQ)"]["critical_batch"] == INT4.critical_batch(card)


def test_what_four_bits_gain_falls_with_the_batch() -> None:
    """Reading 16 / 4.15625 times less at batch 1; nothing once arithmetic binds bf16, too."""
    gains = []
    for batch in (1, 53, 54, 128, 206, 207, 256):
        rows = run(f"70B --card h200 --batch {batch}")["formats"]
        gains.append(rows[-1]["speedup"])
    assert gains[0] == gains[1] == pytest.approx(16 / 4.15625)
    assert gains == sorted(gains, reverse=True) and gains[2] < gains[1]
    assert gains[-1] == gains[-2] == 1.0 < gains[-3]


def test_eight_bits_gain_at_any_batch() -> None:
    for batch in (1, 100, 1000):
        rows = {row["format"]: row for row in run(f"70B --card h100 --batch {batch}")["formats"]}
        assert rows["FP8"]["speedup"] == pytest.approx(2, rel=1e-3)


def test_types_of_70_billion_weights() -> None:
    types = run("70B --card h100")["types"]
    assert [row["name"] for row in types] == [
        "FP32", "FP16", "BF16", "FP8 E4M3", "INT8", "INT4", "NF4",
    ]  # fmt: skip
    assert [row["bytes"] / 1e9 for row in types] == [280, 140, 140, 70, 70, 35, 35]
    assert [row["saving"] for row in types] == [0, 0.5, 0.5, 0.75, 0.75, 0.875, 0.875]
    lines = show("70B --card h100").splitlines()
    assert "70.00 billion weights by type of number, before scales" in lines
    assert "FP16        16              -65504 to 65504  140.0  50.0%" in lines
    assert "INT8         8                  -128 to 127   70.0  75.0%" in lines


def test_ranges_are_those_of_the_types() -> None:
    ranges = {row["name"]: (row["least"], row["largest"]) for row in run("1B --card l4")["types"]}
    for name, dtype in (
        ("FP32", torch.float32), ("FP16", torch.float16), ("BF16", torch.bfloat16),
        ("FP8 E4M3", torch.float8_e4m3fn), ("INT8", torch.int8),
    ):  # fmt: skip
        found = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype)
        assert ranges[name] == (found.min, found.max)


def test_a_folder_counts_its_own_weights() -> None:
    report = run("quire-tiny --card l4 --context 17")
    assert report["kv_bytes"] % 32 == 0 and report["num_parameters"] == 4_951_296
    assert run("quire-tiny --card l4 --context 16")["kv_bytes"] == report["kv_bytes"] // 2


@pytest.mark.parametrize(
    ("memory", "batch", "choice", "reason"),
    [
        (20e9, 1, "int4", "(3.58 x) this one loses least, 0.20%"),
        (20e9, 100, "int8", "(1.59 x) this one loses least, 0.01%"),
        (4.7e9, 1, "int4", "4.5 GB of weights and 0.1 GB of KV fit in 4.7 GB"),
        (4.2e9, 1, "int3", "this one loses least, 1.68%"),
        (3.2e9, 1, "int2", "Memory is tight: of what fits in 3.2 GB it loses least, 43.81%"),
        (1e9, 1, None, "Nothing fits: even 3 bits a weight need 3.0 GB"),
    ],
)
def test_choices_on_a_processor(memory: float, batch: int, choice: str | None, reason: str) -> None:
    load = ServingLoad(num_parameters=8 * 10**9, kv_bytes=10**8 // batch, batch=batch, context=1024)
    advice = advise_cpu(memory, load, MachineSpeed(60e9, 2e11, 1e12, 3e12))
    assert advice.choice == choice
    assert reason in " ".join(advice.reasons)
    assert ("arithmetic binds from" in " ".join(advice.reasons)) == (choice is not None)


def test_this_machine_is_meant_without_a_card() -> None:
    report = run("8B --memory 20GB")
    assert (report["choice"], report["measured_batch"]) == ("int4", 1)
    assert [row["name"] for row in report["formats"]] == [each.name for each in MEASURED_FORMATS]
    assert show("8B --memory 20GB").startswith("choice: int4\n- Of the formats that fit")


def test_measured_figures_are_those_of_the_result_files() -> None:
    speed = _results("quant_llama-1b-4-layers_zen5")
    quality = _results("quant_quire-tiny_zen5")
    for each in MEASURED_FORMATS[1:]:
        fast, good = speed[each.name], quality[each.name]["quality"]["comparison"]
        assert each.bits == fast["bits_per_weight"]
        assert each.decode == {
            int(batch): pytest.approx(figures["ratio"]["median"], abs=0.005)
            for batch, figures in fast["decode"].items()
        }
        assert each.perplexity == pytest.approx(good["ratio"]["value"], abs=5e-5)
    for name, ratio in MEASURED_METHODS.items():
        label = {"plain rounding": "rtn"}.get(name, name.lower())
        good = quality[f"{label}-4"]["quality"]["comparison"]
        assert ratio == pytest.approx(good["ratio"]["value"], abs=5e-5)


def _results(name: str) -> dict[str, Any]:
    """Return what was measured, by the name of the format; a folder may have that of another."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["results"]
    rows.sort(key=lambda row: "rounded at load" in row["format"])
    return {row["label"].split()[-1]: row for row in rows}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing --card h100", "MODEL must be a folder"),
        ("8B --card x100", "is not one of"),
        ("8B -tp 2", "--tensor-parallel-size is of cards"),
        ("8B --card h100 --fraction nan", "not a finite number"),
        ("FIXTURE --card h100", "which is quantized"),
    ],
)
def test_what_cannot_be(arguments: str, message: str) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "quantized" / "gptq-w4-g32"
    words = arguments.replace("FIXTURE", str(fixture)).split()
    done = CliRunner().invoke(calc, ["advise-quant", *words])
    assert done.exit_code == 2 and message in done.output

"""The table of types of numbers: what the code says of them, and that a model of each answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.cli.main import run
from quire.evaluation.formats.held_bits import held_bits
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.small_floats import E4M3
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.planner.advice.number_types import NUMBER_TYPES
from quire.quantization.quantization_plan import create_plan
from quire.quantization.rounding_schemes import create_scheme, quantize
from quire.settings.config import ModelOptions

PAGE = Path(__file__).parents[2] / "docs" / "choosing_quantization.md"
HEADING = "## Types of numbers"
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)


def rows() -> list[list[str]]:
    """Return the cells of the page's table, without its head."""
    section = PAGE.read_text("utf-8").partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return lines[2:]


WAYS = {row[0]: row[-1].strip("`") for row in rows()}


def test_the_page_has_the_types_of_the_code() -> None:
    want = [
        [
            each.name,
            str(each.bits),
            f"{each.least:.6g}",
            f"{each.largest:.6g}",
            f"{each.saving:.1%}",
            f"{each.bytes_of(70 * 10**9) / 1e9:g}",
        ]
        for each in NUMBER_TYPES
    ]
    assert [row[:-1] for row in rows()] == want


@pytest.mark.parametrize("name", [each.name for each in NUMBER_TYPES])
def test_a_model_of_each_type_loads_and_answers(
    create_llm: Callable[..., LLM], checkpoint: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """By what the page says; its matrices take the type's bits and at most one more of scales."""
    (bits,) = (each.bits for each in NUMBER_TYPES if each.name == name)
    command, *flags = WAYS[name].removeprefix("quire ").split()
    source, settings = checkpoint("tiny-llama"), {}
    if command == "quantize":
        folder = tmp_path / "out"
        assert run([command, str(source), str(folder), "--threads", "1", *flags]) == 0
        source = folder
    else:
        settings = {flags[0].removeprefix("--"): flags[1]}
    answer = create_llm(source, **settings).generate([5, 6, 7], GREEDY)[0].outputs[0]
    assert len(answer.token_ids) == 4 and np.isfinite(answer.cumulative_logprob)
    options = ModelOptions(model="", **settings)
    backend, plan = create_backend("cpu", threads=1), create_plan(options)
    held = load_model(source, backend, dtype=options.dtype, plan=plan).held.linears
    layers = {key[0]: linear for key, linear in held.items() if ".layers." in key[0][0]}
    assert sum(map(len, layers)) == 3 * 7
    found = held_bits(part for linear in layers.values() for part in linear.packed)
    assert found is not None
    assert bits <= found.formula <= bits + 1


def test_ranges_are_those_of_codes() -> None:
    """Those of floats are numpy's, of others what their codes stand for without the scale."""
    ranges = {each.name: (each.least, each.largest) for each in NUMBER_TYPES}
    assert ranges["FP8 E4M3"] == (np.nanmin(E4M3), np.nanmax(E4M3))
    for name in ("FP32", "FP16"):
        found = np.finfo({"FP32": np.float32, "FP16": np.float16}[name])
        assert ranges[name] == (found.min, found.max)
    for name, scheme in (("INT8", "int8"), ("INT4", "int4"), ("NF4", "nf4")):
        row = HostTensor("w", "float32", np.linspace(-1, 1, 64, dtype=np.float32)[None])
        made = quantize(row, create_scheme(scheme, 0))
        least, largest = ranges[name]
        if made.code_book is not None:
            assert (made.code_book.min(), made.code_book.max()) == (least, largest)
        else:
            assert (-made.zero, (1 << made.bits) - 1 - made.zero) == (least, largest)

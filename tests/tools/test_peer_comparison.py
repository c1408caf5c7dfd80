"""The comparison's arithmetic: least work of a case, and what counts as a quiet machine."""

from __future__ import annotations

import json

import pytest

from benchmarks import results
from benchmarks.peers.cases import CASES, DEEP, PREFILL_DEEP, Work, rates
from benchmarks.peers.quiet import Verdict, Watch
from quire.cli.main import run
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A GGUF file of a tiny tied model."""
    folder = tmp_path_factory.mktemp("peers")
    random_checkpoint(folder / "m", PRESETS["tiny-qwen3"])
    assert run(["convert", str(folder / "m"), str(folder / "m.gguf"), "--type", "bf16"]) == 0
    return folder / "m.gguf"


def test_the_least_work_of_a_shape(file):
    work = Work.of(file)
    # 3 layers of hidden 64: q and o 64x64, k and v 32x64, three of 128x64; head 320x64.
    matrices = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert work.matrix_params == matrices and work.head_params == 320 * 64
    norms = 4 * (3 * (2 * 64 + 2 * 16) + 64)
    assert work.file_bytes == 2 * (matrices + 320 * 64) + norms
    assert work.kv_bytes == 3 * 2 * 2 * 16 * 2
    read, operations = work.decode(4, 10)
    assert read == work.file_bytes / 4 + 10 * work.kv_bytes
    assert operations == 2 * (matrices + 320 * 64) + 10 * 3 * 4 * 4 * 16


def test_rates_of_answers():
    deep = next(case for case in CASES if case.group == "deep")
    found = rates(deep, {"prefill": 4.0, "steps": [0.1, 0.5, 0.2]})
    assert found == {deep.name: 5.0, PREFILL_DEEP: DEEP / 4.0}
    batch = next(case for case in CASES if case.name == "decode, batch 8")
    assert rates(batch, {"prefill": 1.0, "steps": [0.5]}) == {batch.name: 16.0}
    prefill = next(case for case in CASES if case.group == "prefill")
    assert rates(prefill, 2.0) == {prefill.name: 256.0}


@pytest.mark.parametrize(
    ("foreign", "canary", "is_quiet"), [(0.0, 1.0, True), (0.3, 1.0, False), (0.0, 1.6, False)]
)
def test_a_disturbed_round_is_told(foreign, canary, is_quiet):
    assert Verdict(foreign, canary).is_quiet is is_quiet


def test_own_work_is_not_foreign():
    watch = Watch([])
    watch.begin()
    sum(i * i for i in range(2_000_000))
    before = watch._marks
    after = watch._read()
    # What this process did is in both sums, so their difference cannot grow by it.
    assert after[2] > before[2] and after[1] - before[1] >= 0.5 * (after[2] - before[2])
    assert watch.end().foreign <= 1.0


def test_results_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.merge("x", {"q8_0": {"a": {"v": 1}, "b": {"v": 2}}}, run={"threads": 2}, shape="s")
    first = (tmp_path / "x.json").read_text()
    results.merge("x", {"q8_0": {"a": {"v": 3}}, "bf16": {"a": {"v": 4}}}, run={"threads": 1})
    found = json.loads((tmp_path / "x.json").read_text())
    assert json.loads(first)["results"]["q8_0"]["b"]["v"] == found["results"]["q8_0"]["b"]["v"]
    assert found["results"]["q8_0"]["a"]["v"] == 3 and found["results"]["bf16"]["a"]["v"] == 4
    assert found["shape"] == "s"
    used = {entry["run"] for group in found["results"].values() for entry in group.values()}
    assert set(found["runs"]) == used
    assert all("machine" in run and "commit" in run for run in found["runs"].values())

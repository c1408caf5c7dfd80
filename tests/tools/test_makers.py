"""The makers of the embedded models still run: the smallest step of each, down to what Quire loads.

What they draw and what they keep out of training is in ``test_held_out.py``, of circle 3.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

from quire import LLM, LoRARequest, SamplingParams
from quire.checkpoints.embedded import ASSETS
from tools.quire_tiny import heldout
from tools.quire_tiny.model import SHAPES, ModelShape

#: As large as quire-tiny's vocabulary, the lengths of its rows and its drafters' layers ask for.
SHAPE = ModelShape(2048, 32, 48, 2, 2, 1, head_dim=16)


@pytest.fixture
def made(monkeypatch):
    """Return what runs a maker's command line, with some of its constants replaced."""

    def run(name, *arguments, **constants):
        module = import_module(f"tools.{name}")
        for constant, value in constants.items():
            monkeypatch.setattr(module, constant, value)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        module.main()

    return run


def test_quire_tiny_and_what_goes_with_it(tmp_path, made, monkeypatch):
    out, head, adapter = (tmp_path / name for name in ("out", "head", "adapter"))
    once = ("--minutes", 1e-9, "--threads", 1, "--work", tmp_path)
    monkeypatch.setitem(SHAPES, "main", SHAPE)
    monkeypatch.setattr("tools.quire_tiny.packing.SHARD_TEXTS", 200)
    monkeypatch.setattr("tools.quire_tiny.packing.SHORT_ROWS", 4)
    made("quire_tiny.tokenizer", "--out", tmp_path / "tokenizer", "--num-texts", 30)
    shutil.copy(ASSETS / "quire-tiny/tokenizer.json", tmp_path)
    made("quire_tiny.train", *once)
    made("quire_tiny.export", "--work", tmp_path, "--out", out)
    made("quire_tiny.finetune", *once, "--base", out, SHARD_STEPS=3, LONG_EVERY=3)
    made("quire_tiny.average", "--base", out, "--work", tmp_path, "--share", 0.75)
    groups, kinds = (dict.fromkeys(counts, 1) for counts in (heldout.GROUPS, heldout.TOOL_KINDS))
    made("quire_tiny.heldout", "--out", out / "eval", GROUPS=groups, TOOL_KINDS=kinds)
    made("quire_tiny.calibration", "--out", out / "eval", NUM_TEXTS=2, NUM_CHATS=2)
    heads = ("--method", "medusa", "--steps", 1, "--prompts", 2, "--work", tmp_path, "--out", head)
    made("quire_tiny.draft_heads", *heads, TARGET=out, LAYERS=(0, 1), MAX_TOKENS=4)
    made("quire_tiny.adapters", "--topic", "sql", "--steps", 1, "--out", adapter, BASE=out)
    own = SamplingParams(max_tokens=2, ignore_eos=True)
    with LLM(out, threads=1, enable_lora=True, speculative_config={"model": str(head)}) as llm:
        (answer,) = llm.generate([[1, 2, 3]], own, lora_request=LoRARequest("a", 1, str(adapter)))
    assert len(answer.outputs[0].token_ids) == 2


def test_quire_tiny_vision(tmp_path, made, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr("tools.quire_tiny_vision.batches.DataLoader", lambda made, **_: made)
    steps = ("--cell-steps", 1, "--steps", 1, "--batch", 2)
    made("quire_tiny_vision.train", "--work", tmp_path, *steps)
    made("quire_tiny_vision.export", "--work", tmp_path, "--out", out)
    measured = ("--number", 1, "--json", tmp_path / "measured.json")
    made("quire_tiny_vision.evaluate", "--model", out, *measured, KINDS=("count",))
    assert len(json.loads((tmp_path / "measured.json").read_text())["right"]) == 3

"""Medusa heads: what they draft, by the formula, and which folders are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.core.errors import ModelLoadError
from quire.kernels.backend import Backend
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.registry import create_backend
from quire.models.decoder import Decoder
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.models.draft_heads.medusa import MedusaHeads, load_medusa, read_medusa
from quire.models.loader import load_model
from quire.speculative.drafters.medusa import MedusaProposer
from quire.speculative.drafters.target_states import ComputedStates
from tests.draft_heads import Tensors, medusa_tensors, write_head
from tools.random_checkpoint import PRESETS, random_checkpoint

CONFIG = PRESETS["tiny-llama"]
D, V = CONFIG["hidden_size"], CONFIG["vocab_size"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    random_checkpoint(path, CONFIG)
    return path


@pytest.fixture(scope="module")
def backend(device: str) -> Backend:
    return create_backend(device, threads=1)


@pytest.fixture(scope="module")
def target(folder: Path, backend: Backend) -> Decoder:
    return load_model(folder, backend)


def load(path: Path, target: Decoder) -> MedusaHeads:
    tensors = HeadTensors(path)
    names = read_medusa(tensors, D, V)
    return load_medusa(names, HeadBuilder(tensors, target.backend, "float32"), target)


def greedy(logits: object, rows: IntArray, lengths: IntArray) -> IntArray:
    tokens: IntArray = np.asarray(logits).argmax(-1).astype(np.int32)
    return tokens


def expected(tensors: Tensors, head: int, state: np.ndarray, output: np.ndarray) -> int:
    """Return the token of one head, by the formula in float64."""
    x = state.astype(np.float64)
    for layer in range(2):
        y = tensors[f"{head}.{layer}.linear.weight"] @ x + tensors[f"{head}.{layer}.linear.bias"]
        x = x + y / (1 + np.exp(-y))
    return int((output @ x).argmax())


def begin(proposer: MedusaProposer, table: TokenTable, name: str, tokens: list[int]) -> int:
    row = table.add(name, tokens, len(tokens))
    proposer.begin(row, ())
    return row


@pytest.mark.parametrize("layout", ["target's output", "own output", "vllm", "shared output"])
def test_drafts_are_those_of_the_formula(
    target: Decoder, folder: Path, tmp_path: Path, layout: str
) -> None:
    tensors = medusa_tensors(D, own_head=V if layout == "own output" else 0)
    named = tensors
    target_output = SafetensorsFile(folder / "model.safetensors").tensor("lm_head.weight").float32()
    outputs = [target_output] * 3
    if layout == "own output":
        outputs = [tensors[f"{head}.2.weight"] for head in range(3)]
    if layout in ("vllm", "shared output"):
        named = {f"blocks.{n[0]}.layers.{n[2]}.{n.rsplit('.')[-1]}": t for n, t in tensors.items()}
        shared = -target_output
        if layout == "vllm":
            named |= {f"lm_heads.{head}.weight": shared.copy() for head in range(3)}
        else:
            named["lm_head.weight"] = shared
        outputs = [shared] * 3
    proposer_table = TokenTable(2, 8)
    heads = load(write_head(tmp_path / "head", named), target)
    proposer = MedusaProposer(proposer_table, heads)
    # More rows than the table was made for.
    rows = np.array(
        [begin(proposer, proposer_table, str(i), [1, 2, 3, 4 + i]) for i in range(5)], np.int32
    )
    rng = np.random.default_rng(5)
    states = rng.standard_normal((4, D)).astype(np.float32)
    told = rows[:4]
    proposer.observe(
        ComputedStates(
            told,
            np.array([2, 2, 2, 1], np.int32),  # the last one drew its token from another state
            np.ones(4, np.int32),
            target.backend.from_numpy(states),
        )
    )
    proposer.fork(int(rows[0]), int(rows[4]))
    asked = rows[::-1].copy()
    counts = proposer.propose(asked, np.array([2, 3, 9, 1, 3], np.int32), greedy)
    assert counts.tolist() == [2, 0, 3, 1, 3]
    for row, count, state in zip(asked, counts, [0, 3, 2, 1, 0], strict=True):
        own = proposer_table.token_ids[row, 4 : 4 + count].tolist()
        want = [expected(tensors, head, states[state], outputs[head]) for head in range(count)]
        assert own == want
    proposer.begin(int(rows[0]), ())
    assert proposer.propose(rows[:1], np.array([3], np.int32), greedy).tolist() == [0]


def change(**changes: np.ndarray | None) -> Tensors:
    tensors = medusa_tensors(D) | {k: v for k, v in changes.items() if v is not None}
    return {name: t for name, t in tensors.items() if changes.get(name, t) is not None}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (medusa_tensors(D // 2), f"must have the hidden size of the model it drafts for, {D}"),
        (medusa_tensors(D, own_head=V + 8), f"must have the vocabulary .* {V}; got {V + 8} in"),
        (change(**{"1.0.linear.weight": None, "1.0.linear.bias": None}), "without gaps"),
        (change(**{"1.0.linear.weight": None}), "missing 1.0.linear.weight"),
        (change(**{"1.0.linear.bias": np.zeros(3, np.float32)}), "must have shape"),
        (change(**{"1.2.weight": np.zeros((V, D), np.float32)}), "an output matrix for each of 3"),
        (change(**{"fc.weight": np.zeros((D, D), np.float32)}), "surplus fc.weight"),
        ({"fc.weight": np.zeros((D, D), np.float32)}, "must hold Medusa heads"),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, tensors: Tensors, message: str) -> None:
    head = HeadTensors(write_head(tmp_path / "head", tensors))
    with pytest.raises(ModelLoadError, match=message):
        read_medusa(head, D, V)


def test_folders_without_a_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config.json must be readable"):
        HeadTensors(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"got config.json, medusa_lm_head.pt. Convert"):
        HeadTensors(tmp_path)
    write_head(tmp_path, medusa_tensors(D))
    (tmp_path / "again.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(ModelLoadError, match=r"must not repeat tensors; got 0.0.linear.bias"):
        HeadTensors(tmp_path)

"""Heads that draft several tokens at once: what their masks see, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from quire.core.errors import ModelLoadError  # noqa: E402
from quire.kernels.batch.token_table import IntArray  # noqa: E402
from quire.models.decoder import Decoder  # noqa: E402
from quire.models.draft_heads.eagle3 import read_eagle3  # noqa: E402
from quire.models.draft_heads.head_tensors import HeadTensors  # noqa: E402
from quire.speculative.drafters.parallel import MAX_LOGITS, ParallelProposer  # noqa: E402
from quire.speculative.proposer import Chances, TreeProposer  # noqa: E402
from quire.speculative.token_tree import GrownShape, StaticShape, TreeShape  # noqa: E402
from quire.training.target import HeadVocabulary  # noqa: E402
from tests.published_heads import (  # noqa: E402
    MASK_ID,
    PARALLEL_KINDS,
    DeepEagle3,
    parallel_logits,
    write_head,
)
from tests.recurrent_drafting import Drafting, sequence  # noqa: E402


@pytest.fixture(params=PARALLEL_KINDS)
def drafting(
    request: pytest.FixtureRequest, target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> Drafting:
    return Drafting("eagle3", tmp_path, target, write_head(request.param, vocabulary, tmp_path, 3))


def oracle_logits(own: Drafting, tokens: np.ndarray, states: np.ndarray, count: int) -> Any:
    assert isinstance(own.oracle, DeepEagle3)
    ids, rows = torch.tensor(tokens).long(), torch.tensor(states[: len(tokens) - 1])
    return parallel_logits(own.oracle, ids, rows, count).numpy()


def test_one_forward_drafts_all(drafting: Drafting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different lengths, up to the most tokens that a draft may have."""
    tokens, states = sequence(1, 60)
    rows = [drafting.begin("a", tokens, 1, 21), drafting.begin("b", tokens, 30, 40)]
    drafting.observe({rows[0]: (states, 0, 20), rows[1]: (states, 0, 39)})
    calls = []
    forward = drafting.head.forward
    monkeypatch.setattr(drafting.head, "forward", lambda *a: calls.append(1) or forward(*a))
    drafted = drafting.propose(rows, [MAX_LOGITS - 5, 5])
    assert drafted == [
        drafting.expected(tokens[:21], states, MAX_LOGITS - 5),
        drafting.expected(tokens[:40], states, 5),
    ]
    assert len(calls) == 1


def test_many_rows_are_drafted_in_parts(
    drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.speculative.drafters.parallel.MAX_LOGITS", 7)
    tokens, states = sequence(2, 60)
    rows = [drafting.begin(str(n), tokens, 1 + 20 * n, 20 + n) for n in range(4)]
    drafting.observe({row: (states, 0, 19 + n) for n, row in enumerate(rows)})
    most = [3, 4, 1, 7]
    assert drafting.propose(rows, most) == [
        drafting.expected(tokens[: 20 + n], states, count) for n, count in enumerate(most)
    ]


def test_a_draft_ends_where_no_token_is_possible(drafting: Drafting) -> None:
    tokens, states = sequence(3, 40)
    rows = [drafting.begin(str(n), tokens, 1 + 20 * n, 20 + n) for n in range(3)]
    drafting.observe({row: (states, 0, 19 + n) for n, row in enumerate(rows)})

    def draw(logits: Any, of: IntArray, lengths: IntArray) -> IntArray:
        drawn = np.asarray(logits).argmax(-1).astype(np.int32)
        drawn[(of == rows[1]) & (lengths == 22)] = -1
        return drawn

    most = np.array([4, 4, 2], np.int32)
    counts = drafting.proposer.propose(np.array(rows, np.int32), most, draw)
    assert counts.tolist() == [4, 1, 2]
    for n, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
        own = drafting.table.token_ids[row, 20 + n : 20 + n + count]
        assert own.tolist() == drafting.expected(tokens[: 20 + n], states, count)


def best(logits: Any, count: int) -> np.ndarray:
    return np.argsort(-np.asarray(logits), axis=-1, kind="stable")[:, :count].astype(np.int32)


def rank(logits: Any, rows: IntArray, lengths: IntArray, count: int) -> tuple[IntArray, Chances]:
    tokens = best(logits, count)
    chances = np.geomspace(0.5, 0.5 / 2**count, count, dtype=np.float32)
    return tokens, np.tile(chances, (len(tokens), 1))


SHAPES: list[TreeShape] = [
    StaticShape(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 2))),
    GrownShape(2, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=["static", "grown"])
def test_trees_have_the_candidates_of_their_level(drafting: Drafting, shape: TreeShape) -> None:
    assert isinstance(drafting.proposer, TreeProposer)
    tokens, states = sequence(4, 60)
    known = [20, 33, 12]
    rows = [drafting.begin(str(n), tokens, 1 + 20 * n, count) for n, count in enumerate(known)]
    drafting.observe({row: (states, 0, known[n] - 1) for n, row in enumerate(rows[:2])})
    most = np.array([6, 3, 6], np.int32)
    parents = drafting.proposer.propose_trees(np.array(rows, np.int32), most, shape, rank)
    assert [len(own) for own in parents] == [6, 3, 0]
    for row, start, own in zip(rows[:2], known, parents, strict=False):
        candidates = best(oracle_logits(drafting, tokens[:start], states, 4), 3)
        depth: list[int] = []
        for node, parent in enumerate(own):
            depth.append(0 if parent < 0 else depth[parent] + 1)
            token = drafting.table.token_ids[row, start + node]
            assert token in candidates[depth[node]][: shape.num_candidates(depth[node])]
        assert max(depth) >= 1


def test_masks_are_not_taken_for_pairs(drafting: Drafting) -> None:
    """A row with the tokens whose pairs were there before attends after the masks only."""
    tokens, states = sequence(5, 60)
    row = drafting.begin("a", tokens, 1, 40)
    drafting.observe({row: (states, 0, 39)})
    assert drafting.propose([row], [1]) == [drafting.expected(tokens[:40], states, 1)]
    drafting.proposer.forget(row)
    # Masks at 24 to 27, in the same blocks: they were the pairs of the same tokens.
    short = drafting.begin("b", tokens, 1, 24)
    drafting.observe({short: (states, 0, 23)})
    drafting.propose([short], [5])
    drafting.proposer.forget(short)
    again = drafting.begin("c", tokens, 1, 38)
    drafting.observe({again: (states, 36, 37)})
    assert len(drafting.propose([again], [3])[0]) == 3
    assert drafting.proposer._rows[again].start == 32
    assert isinstance(drafting.proposer, ParallelProposer)


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"ptd_token_id": None}, "None"),
        ({"ptd_token_id": 320}, "320"),
        ({"pard_token": "7"}, "'7'"),
    ],
)
def test_a_mask_without_its_token_is_refused(
    changes: dict[str, Any], got: str, target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    write_head("eagle3-parallel", vocabulary, tmp_path, 3)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8"))
    assert config["ptd_token_id"] == MASK_ID
    file.write_text(json.dumps(config | changes), "utf-8")
    with pytest.raises(ModelLoadError, match=rf"must have one of mask_token_id, .*; got {got}\."):
        read_eagle3(HeadTensors(tmp_path), target.config)

"""Heads that draft token after token: their drafts against the plain definition in torch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from quire.core.errors import ModelLoadError  # noqa: E402
from quire.models.config.config_reader import read_model_config  # noqa: E402
from quire.models.decoder import Decoder  # noqa: E402
from quire.models.draft_heads.head_tensors import HeadTensors  # noqa: E402
from quire.runner.memory.loaded_heads import RECURRENT  # noqa: E402
from quire.speculative.drafters.draft_prefill import LEAST_TOKENS, DraftPrefill  # noqa: E402
from quire.training.target import HeadVocabulary  # noqa: E402
from tests.published_heads import KINDS, write_head  # noqa: E402
from tests.recurrent_drafting import CONFIG, Drafting, sequence  # noqa: E402

D = CONFIG["hidden_size"]


def create(
    kind: str, vocabulary: HeadVocabulary, path: Path, target: Decoder, *, has_rules: bool = False
) -> Drafting:
    """Return a proposer of a random head that lies in ``path``."""
    oracle = write_head(kind, vocabulary, path, CONFIG["num_hidden_layers"])
    return Drafting(kind.partition("-")[0], path, target, oracle, has_rules=has_rules)


@pytest.mark.parametrize("has_rules", [False, True], ids=["plain", "rules"])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_oracle(
    kind: str, has_rules: bool, target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    own = create(kind, vocabulary, tmp_path, target, has_rules=has_rules)
    tokens, states = sequence(1, 90)
    others, other_states = sequence(2, 90)
    row, other = own.begin("a", tokens, 1, 31), own.begin("b", others, 30, 12)
    own.observe({row: (states, 0, 7)})  # a prompt in parts
    assert own.propose([row], [3]) == [[]]
    own.observe({other: (other_states, 0, 11), row: (states, 7, 30)})
    drafted = own.propose([other, row], [2, 4])
    assert drafted == [
        own.expected(others[:12], other_states, 2),
        own.expected(tokens[:31], states, 4),
    ]
    # Two of the proposals hold, none of the other's; refused ones are computed over.
    for at, known, start, stop in ((row, 34, 30, 33), (other, 13, 11, 12)):
        source, rows_of = (tokens, states) if at == row else (others, other_states)
        own.table.token_ids[at, :known] = source[:known]
        own.table.num_tokens[at] = known
        own.observe({at: (rows_of, start, stop)})
    assert own.propose([row], [3]) == [own.expected(tokens[:34], states, 3)]
    assert own.propose([row], [3]) == [[]]  # nothing new was computed
    # Steps without proposals in between.
    for known in range(14, 20):
        own.table.token_ids[other, :known] = others[:known]
        own.table.num_tokens[other] = known
        own.observe({other: (other_states, known - 2, known - 1)})
    assert own.propose([other], [4]) == [own.expected(others[:19], other_states, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_never_computed_is_left_out(
    kind: str, target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    """A head sees positions of its own tokens only, as if the sequence began there."""
    own = create(kind, vocabulary, tmp_path, target)
    tokens, states = sequence(3, 60)
    first = own.begin("a", tokens, 1, 25)
    own.observe({first: (states, 0, 24)})
    own.propose([first], [1])
    # Blocks 1 and 2 hold other tokens now, as far as the cache goes.
    changed = tokens.copy()
    changed[3] += 1
    row = own.begin("b", changed, 1, 33)
    own.observe({row: (states, 16, 32)})
    assert own.propose([row], [3]) == [own.expected(changed[16:33], states[16:], 3)]
    # The same tokens: what was computed of them is seen, and no more.
    again = own.begin("c", changed, 1, 40)
    own.observe({again: (states, 32, 39)})
    (drafted,) = own.propose([again], [2])
    assert len(drafted) == 2
    assert own.proposer._rows[again].start == 16


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_blocks_that_were_given_back_are_left_out(
    kind: str, target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    """A prompt longer than the target's window is drafted from as if it began in the window."""
    own = create(kind, vocabulary, tmp_path, target)
    tokens, states = sequence(6, 60)
    short, long = own.begin("a", tokens, 1, 41), own.begin("b", tokens, 30, 41)
    own.observe({short: (states, 23, 40), long: (states, 0, 40)})
    own.table.block_ids[long, :3] = 0
    own.table.block_ids[short, :3] = 0
    want, drafted = own.propose([short, long], [4, 4])
    assert drafted == want and len(want) == 4
    assert own.proposer._rows[long].start == 24
    # Without them the drafts are others: the head does look at what it has.
    again = own.begin("c", tokens, 50, 41)
    own.observe({again: (states, 0, 40)})
    assert own.propose([again], [4]) == [own.expected(tokens[:41], states, 4)] != [want]


def test_a_fork_goes_on_from_its_parent(
    target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    own = create("eagle3", vocabulary, tmp_path, target)
    tokens, states = sequence(4, 40)
    row, child = own.begin("a", tokens, 1, 21), own.begin("b", tokens, 40, 21)
    own.observe({row: (states, 0, 20)})
    own.proposer.fork(row, child)
    want = own.expected(tokens[:21], states, 3)
    assert own.propose([row, child], [3, 3]) == [want, want]


def test_a_fork_and_its_parent_go_on_apart(
    target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    """What one of them computes after the fork is not taken for the other's."""
    own = create("eagle3", vocabulary, tmp_path, target)
    tokens, states = sequence(7, 40)
    row = own.begin("a", tokens, 1, 21)
    own.observe({row: (states, 0, 20)})
    assert own.propose([row], [3]) == [own.expected(tokens[:21], states, 3)]
    child = own.begin("b", tokens, 40, 21)
    own.proposer.fork(row, child)
    own.proposer.copy_blocks([(1, 40), (2, 41), (3, 42)])
    for one in (row, child):
        own.table.token_ids[one, :24] = tokens[:24]
        own.table.num_tokens[one] = 24
    own.observe({row: (states, 20, 23), child: (states, 20, 23)})
    for one in (row, child):
        assert own.propose([one], [3]) == [own.expected(tokens[:24], states, 3)]


def test_nothing_is_drafted_from_a_part_of_a_prompt(
    target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    own = create("eagle3", vocabulary, tmp_path, target)
    own.proposer._prefill = DraftPrefill(LEAST_TOKENS)
    tokens, states = sequence(8, 110)
    row = own.begin("a", tokens, 1, 101)
    own.observe({row: (states, 0, 100)})
    assert own.propose([row], [3]) == [[]]
    assert own.propose([row], [3]) == [own.expected(tokens[:101], states, 3)]


def test_states_without_room_are_let_go(
    target: Decoder, vocabulary: HeadVocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.speculative.drafters.recurrent.MAX_KEPT", 64)
    own = create("eagle3", vocabulary, tmp_path, target)
    tokens, states = sequence(5, 140)
    row = own.begin("a", tokens, 1, 131)
    for start in range(0, 130, 13):
        own.observe({row: (states, start, start + 13)})
    (drafted,) = own.propose([row], [3])
    assert len(drafted) == 3
    # States 66 to 129 are kept: the first whole block of pairs that have one begins at 72.
    assert own.proposer._rows[row].start == 72
    # More states in one step than there is room for, of two rows.
    other, own_other = own.begin("b", tokens, 40, 101), own.begin("c", tokens, 80, 21)
    own.observe({other: (states, 0, 100), own_other: (states, 0, 20)})
    drafted, short = own.propose([other, own_other], [3, 3])
    assert len(drafted) == 3 and own.proposer._rows[other].start == 64
    assert short == own.expected(tokens[:21], states, 3)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_other_folders_are_refused(
    kind: str, folder: Path, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    config = read_model_config(folder)
    other = {"eagle": "eagle3", "eagle3": "eagle", "mtp": "eagle"}[kind]
    write_head(other, vocabulary, tmp_path / "other", CONFIG["num_hidden_layers"])
    tensors = HeadTensors(tmp_path / "other")
    with pytest.raises(ModelLoadError, match=r"must be those of its configuration|must have "):
        RECURRENT[kind][0](tensors, config)
    write_head(kind, vocabulary, tmp_path / "head", CONFIG["num_hidden_layers"])
    tensors = HeadTensors(tmp_path / "head")
    tensors.config.values["hidden_size"] = 2 * D  # type: ignore[index]
    with pytest.raises(ModelLoadError, match=rf"must have the hidden size .* {D}; got {2 * D}"):
        RECURRENT[kind][0](tensors, config)

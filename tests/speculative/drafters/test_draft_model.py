"""A draft model in the target's blocks against the same model alone with the same tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.checkpoints.embedded import ASSETS
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import Array, Backend
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.registry import create_backend
from quire.models.decoder import Decoder
from quire.models.loader import load_model
from quire.speculative.drafters.draft_model import DraftModelProposer
from quire.speculative.drafters.draft_prefill import FIRST_TOKENS, LEAST_TOKENS

BLOCK_SIZE = 8
VOCAB_SIZE = 2048  # of quire-tiny and its draft

Alone = Callable[[IntArray], Array]


def ints(*values: int) -> IntArray:
    return np.array(values, np.int32)


def cache_spec(model: Decoder) -> KVCacheSpec:
    config = model.config
    return KVCacheSpec(
        config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, config.dtype
    )


@pytest.fixture(scope="module")
def backend(device: str) -> Backend:
    if device != "cpu":
        pytest.skip("the native kernels are not built")
    return create_backend(device, threads=1)


@pytest.fixture(scope="module")
def alone(backend: Backend) -> Alone:
    """Return the logits (V,) after tokens that are computed at once, in a cache of their own."""
    model = load_model(ASSETS / "quire-tiny-draft", backend)

    def logits(tokens: IntArray) -> Array:
        count = len(tokens)
        num_blocks = -(-count // BLOCK_SIZE)
        positions = np.arange(count, dtype=np.int32)
        batch = ForwardBatch(
            input_ids=tokens,
            positions=positions,
            slot_mapping=positions.astype(np.int64) + BLOCK_SIZE,
            block_tables=np.arange(1, num_blocks + 1, dtype=np.int32)[None],
            query_start_loc=ints(0, count),
            seq_lens=ints(count),
            logits_indices=ints(count - 1),
        )
        kv_cache = backend.kv_cache(cache_spec(model), num_blocks + 1)
        return model.logits(model.forward(batch, kv_cache))[0].copy()

    return logits


class Drafting:
    """A proposer with a table, and what it asked to be drawn from."""

    def __init__(self, backend: Backend, vocab_size: int = VOCAB_SIZE, limit: int = 2048) -> None:
        model = load_model(ASSETS / "quire-tiny-draft", backend)
        self.table = TokenTable(4, 400)
        self.kv_cache = backend.kv_cache(cache_spec(model), 1000)
        self.proposer = DraftModelProposer(
            self.table, model, self.kv_cache, vocab_size=vocab_size, max_model_len=limit
        )
        self.drawn: list[tuple[IntArray, Array]] = []  # tokens, and the logits after them
        self.refused: set[int] = set()  # rows that nothing can be drawn for

    def add(self, name: str, tokens: IntArray | list[int], blocks: IntArray | list[int]) -> int:
        row = self.table.add(name, tokens, len(tokens))
        self.table.append_blocks(row, blocks)
        self.proposer.begin(row, ())
        return row

    def propose(self, rows: list[int], most: list[int]) -> list[int]:
        self.drawn = []
        self.table.reserve(ints(*rows), ints(*most) + 1)
        return self.proposer.propose(ints(*rows), ints(*most), self.draw).tolist()

    def draw(self, logits: Array, rows: IntArray, lengths: IntArray) -> IntArray:
        for row, length, own in zip(rows, lengths, logits, strict=True):
            self.drawn.append((self.table.token_ids[row, :length].copy(), own.copy()))
        tokens = logits.argmax(axis=1).astype(np.int32)
        tokens[[row in self.refused for row in rows.tolist()]] = -1
        logits[:] = np.nan  # a draw may overwrite them
        return tokens

    def proposed(self, row: int, count: int) -> list[int]:
        known = int(self.table.num_tokens[row])
        return self.table.token_ids[row, known : known + count].tolist()

    def accept(self, row: int, held: int, then: int) -> None:
        self.table.num_tokens[row] += held
        self.table.append_tokens(ints(row), ints(then))


def check(drafting: Drafting, alone: Alone) -> None:
    for tokens, logits in drafting.drawn:
        assert np.array_equal(logits, alone(tokens))


def test_logits_are_those_of_the_draft_alone(backend: Backend, alone: Alone) -> None:
    """Rows come and go, take over blocks, share prefixes; proposals hold in part."""
    random = np.random.default_rng(1)
    drafting = Drafting(backend)
    prefix = random.integers(4, 2000, 5 * BLOCK_SIZE)
    live: dict[str, int] = {}
    regions: dict[str, int] = {}  # which blocks a row has to itself
    num_checked = 0
    for number in range(40):
        if len(live) < 4:
            own = random.integers(4, 2000, random.integers(1, 60))
            tokens = np.concatenate([prefix, own]) if random.random() < 0.7 else own
            # Prefixes are computed once; after them come blocks that others have left.
            region = int(random.choice([i for i in range(1, 7) if i not in regions.values()]))
            regions[str(number)] = region
            blocks = list(range(100 * region, 100 * region + 60))
            if len(tokens) > len(own):
                blocks = [1, 2, 3, 4, 5, *blocks]
            live[str(number)] = drafting.add(str(number), tokens, blocks)
        rows = [row for row in live.values() if random.random() < 0.8]
        if not rows:
            continue
        most = random.integers(1, 6, len(rows)).tolist()
        assert drafting.propose(rows, most) == most
        assert len(drafting.drawn) == sum(most)
        check(drafting, alone)
        num_checked += sum(most)
        for row, count in zip(rows, most, strict=True):
            drafting.accept(row, int(random.integers(0, count + 1)), int(random.integers(4, 2000)))
        for name in [name for name in live if random.random() < 0.1]:
            drafting.proposer.forget(live[name])
            drafting.table.remove(name)
            del live[name], regions[name]
    assert num_checked > 200


def test_what_is_there_already_is_not_computed_again(backend: Backend, alone: Alone) -> None:
    drafting, computed = Drafting(backend), []
    model = drafting.proposer._model
    forward = model.forward

    def counting(batch: ForwardBatch, *rest: object) -> object:
        computed.append(len(batch.input_ids))
        return forward(batch, *rest)  # type: ignore[arg-type]

    model.forward = counting  # type: ignore[method-assign, assignment]
    tokens = list(range(100, 140))
    first = drafting.add("a", tokens, list(range(1, 20)))
    drafting.propose([first], [4])
    assert computed == [40, 1, 1, 1]
    computed.clear()
    drafting.accept(first, 4, 7)  # all held: the last one's KV is not there
    drafting.propose([first], [3])
    assert computed == [2, 1, 1]
    computed.clear()
    drafting.accept(first, 1, 8)
    drafting.propose([first], [2])
    assert computed == [1, 1]
    computed.clear()
    second = drafting.add("b", tokens, list(range(1, 20)))  # preempted, and found again
    drafting.propose([second], [1])
    assert computed == [1]
    computed.clear()
    drafting.proposer.copy_blocks([(5, 30)])
    third = drafting.add("c", [*tokens[:-1], 9], [1, 2, 3, 4, 30])  # a copied block
    drafting.propose([third], [1])
    assert computed == [1]
    check(drafting, alone)


def test_long_prompts_take_several_steps(backend: Backend, alone: Alone) -> None:
    drafting = Drafting(backend)
    random = np.random.default_rng(2)
    short = drafting.add("a", random.integers(4, 2000, 20), list(range(1, 10)))
    long = drafting.add("b", random.integers(4, 2000, 2 * FIRST_TOKENS), list(range(10, 150)))
    longer = drafting.add(
        "c", random.integers(4, 2000, 2 * FIRST_TOKENS + 9), list(range(150, 300))
    )
    rows = [longer, long, short]
    counts = []
    for _ in range(5):
        counts.append(drafting.propose(rows, [2, 2, 2]))
        check(drafting, alone)
        for row, count in zip(rows, counts[-1], strict=True):
            if count:
                drafting.accept(row, 1, 5)
    # Who wants least comes first; the others go on where they were.
    assert counts == [[0, 0, 2], [0, 0, 2], [0, 2, 2], [0, 2, 2], [2, 2, 2]]


def test_a_long_prompt_takes_more_steps_where_those_of_the_target_are_short(
    backend: Backend, alone: Alone
) -> None:
    """It was 512 tokens a step however long the step's other requests waited for them."""
    drafting = Drafting(backend)
    random = np.random.default_rng(2)
    long = drafting.add("a", random.integers(4, 2000, 900), list(range(1, 120)))
    assert drafting.propose([long], [2]) == [0]  # as before anything is measured
    drafting.proposer.step_took(1e-9)
    left = 900 - FIRST_TOKENS
    for _ in range(left // LEAST_TOKENS):
        assert drafting.propose([long], [2]) == [0]
    assert drafting.propose([long], [2]) == [2]
    check(drafting, alone)
    longer = drafting.add("b", random.integers(4, 2000, 1100), list(range(150, 300)))
    for _ in range(2):
        drafting.proposer.step_took(1e9)
    assert [drafting.propose([longer], [2]) for _ in range(2)] == [[0], [2]]
    check(drafting, alone)


def test_nothing_is_proposed_past_the_limit(backend: Backend, alone: Alone) -> None:
    drafting = Drafting(backend, limit=50)
    near = drafting.add("a", list(range(100, 148)), list(range(1, 20)))
    at = drafting.add("b", list(range(100, 150)), list(range(20, 40)))
    past = drafting.add("c", list(range(100, 160)), list(range(40, 60)))
    assert drafting.propose([past, near, at], [4, 4, 4]) == [0, 2, 0]
    check(drafting, alone)
    assert drafting.propose([past, at], [4, 4]) == [0, 0]


def test_a_row_ends_where_nothing_can_be_drawn(backend: Backend, alone: Alone) -> None:
    drafting = Drafting(backend)
    rows = [drafting.add(str(i), [5 + i] * 10, list(range(1 + 9 * i, 10 + 9 * i))) for i in (0, 1)]
    drafting.refused = {rows[0]}
    assert drafting.propose(rows, [3, 3]) == [0, 3]
    check(drafting, alone)
    drafting.refused = set(rows)
    assert drafting.propose(rows, [3, 3]) == [0, 0]


@pytest.mark.parametrize("vocab_size", [2000, 2100])
def test_a_vocabulary_of_another_width(backend: Backend, alone: Alone, vocab_size: int) -> None:
    """Only ids that both have can be proposed; others may stand in the row."""
    drafting = Drafting(backend, vocab_size)
    plain = Drafting(backend)
    tokens = list(range(100, 140))
    for d in (drafting, plain):
        row = d.add("a", tokens, list(range(1, 20)))
        assert d.propose([row], [4]) == [4]
    assert drafting.proposed(row, 4) == plain.proposed(row, 4)
    for tokens_before, logits in drafting.drawn:
        common = min(vocab_size, VOCAB_SIZE)
        assert logits.shape == (vocab_size,)
        assert np.array_equal(logits[:common], alone(tokens_before)[:common])
        assert np.all(logits[common:] == -np.inf)
    drafting.table.append_tokens(ints(row), ints(vocab_size - 1))
    assert drafting.propose([row], [4]) == [4]
    assert all(np.isfinite(logits[:2000]).all() for _, logits in drafting.drawn)

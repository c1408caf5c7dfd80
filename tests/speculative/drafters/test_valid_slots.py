"""Valid slots against what each slot was really computed from, slot by slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.speculative.drafters.valid_slots import SPAN, ValidSlots


def ints(*values: int) -> IntArray:
    return np.array(values, np.int32)


class Cache:
    """A cache that remembers the tokens that each slot was computed from."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[int, bytes] = {}
        self.table = TokenTable(2, num_blocks)
        self.slots = ValidSlots(self.table, num_blocks, block_size)

    def add(self, name: str, tokens: Sequence[int], blocks: Sequence[int]) -> int:
        row = self.table.add(name, list(tokens), len(tokens))
        self.table.append_blocks(row, list(blocks))
        self.slots.begin(row)
        return row

    def slot(self, row: int, position: int) -> int:
        block = int(self.table.block_ids[row, position // self.block_size])
        return block * self.block_size + position % self.block_size

    def prefix(self, row: int, length: int) -> bytes:
        return self.table.token_ids[row, :length].tobytes()

    def num_valid(self, row: int) -> int:
        for position in range(int(self.table.num_tokens[row])):
            if self.tokens.get(self.slot(row, position)) != self.prefix(row, position + 1):
                return position
        return int(self.table.num_tokens[row])

    def find(self, rows: Sequence[int]) -> list[int]:
        found = self.slots.find(ints(*rows)).tolist()
        assert found == [self.num_valid(row) for row in rows]
        return found

    def propose(self, row: int, tokens: Sequence[int]) -> None:
        """Put tokens after the known ones."""
        known = int(self.table.num_tokens[row])
        self.table.reserve(ints(row), ints(len(tokens)))
        self.table.token_ids[row, known : known + len(tokens)] = tokens

    def fill(self, ends: dict[int, int]) -> None:
        for row, end in ends.items():
            for position in range(end):
                self.tokens[self.slot(row, position)] = self.prefix(row, position + 1)
        self.slots.fill(ints(*ends), ints(*ends.values()))

    def copy(self, source: int, destination: int) -> None:
        for offset in range(self.block_size):
            at = destination * self.block_size + offset
            self.tokens[at] = self.tokens.get(source * self.block_size + offset, b"")
        self.slots.copy_blocks([(source, destination)])


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_rows_that_grow_and_lose_what_was_proposed(block_size: int) -> None:
    """Three rows at a time, with few different tokens, so that some proposals hold by chance."""
    random = np.random.default_rng(block_size)
    cache = Cache(1000, block_size)
    rows, found = [], []
    for i in range(3):
        blocks = random.permutation(300)[:200] + 1 + 300 * i
        rows.append(cache.add(str(i), random.integers(0, 2, 30 * i + 1), blocks))
    for _ in range(60):
        asked = random.permutation(rows)[: random.integers(1, 4)].tolist()
        found += cache.find(asked)
        ends = {}
        for row in asked:
            proposed = random.integers(0, 2, random.integers(0, 5))
            cache.propose(row, proposed)
            known = int(cache.table.num_tokens[row])
            ends[row] = int(random.integers(known - 3, known + len(proposed) + 1))
        cache.fill({row: max(end, 0) for row, end in ends.items()})
        for row in asked:
            known, held = int(cache.table.num_tokens[row]), int(random.integers(0, 3))
            cache.table.num_tokens[row] = known + held  # some of them were never proposed
            cache.table.append_tokens(ints(row), random.integers(0, 2, 1).astype(np.int32))
    assert len(set(found)) > 30


def test_a_new_row_finds_what_another_has_computed() -> None:
    """The block tables of requests after a hit in the prefix cache, and after preemption."""
    random = np.random.default_rng(0)
    cache = Cache(60, 4)
    for number in range(300):
        shared = int(random.integers(0, 6))
        tokens = [5] * 4 * shared + random.integers(0, 2, random.integers(1, 20)).tolist()
        blocks = [*range(1, shared + 1), *(random.permutation(50)[:8] + 8).tolist()]
        row = cache.add(str(number), tokens, blocks)
        (found,) = cache.find([row])
        cache.fill({row: len(tokens) - int(random.integers(0, 2))})
        if number > 50:
            assert found >= 4 * shared
        cache.table.remove(str(number))


def test_a_fork_shares_blocks_until_they_are_copied() -> None:
    cache = Cache(20, 4)
    parent = cache.add("a", [1, 2, 3, 4, 5, 6], [3, 4])
    cache.fill({parent: 6})
    child = cache.table.fork("a", "b")
    cache.slots.begin(child)
    assert cache.find([child, parent]) == [6, 6]
    cache.copy(4, 5)
    cache.table.block_ids[child, 1] = 5
    cache.table.append_tokens(ints(parent, child), ints(7, 8))
    cache.fill({parent: 7, child: 7})
    for row in (parent, child):
        cache.slots.begin(row)
    assert cache.find([parent, child]) == [7, 7]
    cache.copy(4, 5)
    cache.slots.begin(child)
    assert cache.find([child]) == [6]


def test_order_and_place_of_tokens_count() -> None:
    cache = Cache(20, 4)
    cache.fill({cache.add("a", [1, 2, 3, 0, 0, 4], [1, 2]): 6})
    for name, tokens in {"b": [2, 1, 3, 0, 0, 4], "c": [0, 0, 1, 2, 3, 4], "d": [0] * 6}.items():
        assert cache.find([cache.add(name, tokens, [1, 2])]) == [0]
    assert cache.find([cache.add("e", [1, 2, 3, 0, 4, 0], [1, 2])]) == [4]
    assert cache.find([cache.add("f", [0] * 6, [8, 9])]) == [0]  # never written


def test_long_rows_are_compared_in_spans() -> None:
    cache = Cache(700, 64)
    lengths = [1, SPAN - 1, SPAN, SPAN + 1, 3 * SPAN, 3 * SPAN + 5]
    rows = []
    for i, length in enumerate(lengths):
        blocks = range(1 + i * 100, 1 + i * 100 + length // 64 + 1)
        rows.append(cache.add(str(i), np.arange(length), blocks))
    ends = [0, 5, SPAN, SPAN + 1, 3 * SPAN, SPAN + 7]
    cache.slots.fill(ints(*rows), ints(*ends))
    for row in rows:
        cache.slots.begin(row)
    assert cache.slots.find(ints(*rows)).tolist() == ends


def test_blocks_that_were_given_back_count_as_valid() -> None:
    """A window has passed them: nothing will be read there, and nothing can be written."""
    cache = Cache(20, 4)
    row = cache.add("a", range(14), [0, 0, 5, 6])
    assert cache.slots.find(ints(row)).tolist() == [8]
    cache.slots.fill(ints(row), ints(14))
    cache.slots.begin(row)
    assert cache.slots.find(ints(row)).tolist() == [14]


def test_the_table_grows() -> None:
    cache = Cache(20, 4)
    rows = [cache.add(str(i), [i] * 4, [i + 1]) for i in range(9)]
    cache.fill(dict.fromkeys(rows, 4))
    assert cache.find(rows) == [4] * 9

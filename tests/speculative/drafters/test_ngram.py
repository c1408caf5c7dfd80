"""The n-gram proposer: what is matched and copied, whose outputs are seen, and its bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.speculative.drafters.ngram import NgramProposer, lookup_lengths


def no_draw(logits: object, rows: IntArray, lengths: IntArray) -> IntArray:
    raise AssertionError("copied tokens are not drawn")


class Rows:
    """A token table whose requests are proposed for.

    Args:
        settings: Of the proposer.
    """

    def __init__(self, **settings: int) -> None:
        self.table = TokenTable(2, 1)
        self.proposer = NgramProposer(self.table, **settings)
        self._count = 0

    def begin(self, tokens: Sequence[int], *keys: str) -> int:
        self._count += 1
        row = self.table.add(f"{self._count}", list(tokens), len(tokens))
        self.proposer.begin(row, keys)
        return row

    def append(self, row: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.table.append_tokens(np.array([row]), np.array([token], np.int32))

    def propose(self, *rows: int, most: int = 8) -> list[list[int]]:
        asked = np.array(rows, np.int32)
        limits = np.full(len(rows), most, np.int32)
        self.table.reserve(asked, limits + 1)
        known = [self.table.tokens(row).tolist() for row in rows]
        counts = self.proposer.propose(asked, limits, no_draw).tolist()
        assert [self.table.tokens(row).tolist() for row in rows] == known
        at = self.table.num_tokens
        return [
            self.table.token_ids[row, at[row] : at[row] + count].tolist()
            for row, count in zip(rows, counts, strict=True)
        ]

    def end(self, row: int) -> None:
        self.proposer.forget(row)
        (request_id,) = (i for i, r in self.table.rows.items() if r == row)
        self.table.remove(request_id)

    def run(self, prompt: Sequence[int], output: Sequence[int], *keys: str) -> None:
        """Have a request that comes, gets its output, and ends."""
        row = self.begin(prompt, *keys)
        self.append(row, output)
        self.end(row)


def test_what_followed_the_same_tokens_is_proposed() -> None:
    rows = Rows()
    row = rows.begin([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert rows.propose(row) == [[4, 5, 6, 9]]


def test_the_longest_match_decides() -> None:
    rows = Rows()
    row = rows.begin([1, 2, 3, 40, 9, 2, 3, 50, 9, 1, 2, 3])
    assert rows.propose(row) == [[40, 9, 2, 3]]


def test_of_equal_matches_the_last_decides() -> None:
    rows = Rows()
    row = rows.begin([1, 2, 3, 40, 8, 1, 2, 3, 50, 9, 1, 2, 3])
    assert rows.propose(row, most=1) == [[50]]


def test_longer_matches_are_cut_to_the_longest() -> None:
    """Both places agree in two tokens, the first one in three: who looks at two takes the last."""
    tokens = [1, 2, 3, 40, 8, 2, 3, 50, 9, 1, 2, 3]
    rows = Rows(longest=2)
    assert rows.propose(rows.begin(tokens), most=1) == [[50]]
    rows = Rows(longest=3)
    assert rows.propose(rows.begin(tokens), most=1) == [[40]]


@pytest.mark.parametrize(("shortest", "proposed"), [(1, [3, 9, 8]), (2, [3, 9, 8]), (3, [])])
def test_shorter_matches_propose_nothing(shortest: int, proposed: list[int]) -> None:
    rows = Rows(shortest=shortest)
    assert rows.propose(rows.begin([1, 2, 3, 9, 8, 7, 1, 2])) == [proposed]


def test_longer_matches_propose_more() -> None:
    tokens = list(range(100))
    for length, count in ((2, 3), (3, 4), (4, 6), (20, 30)):
        rows = Rows()
        row = rows.begin(tokens + tokens[:length])
        assert rows.propose(row, most=64) == [tokens[length : length + count]]


def test_text_without_repetition_gets_nothing() -> None:
    rows = Rows()
    row = rows.begin([0])
    for token in range(1, 50):
        assert rows.propose(row) == [[]]
        rows.append(row, [token])


def test_a_period_goes_on_after_the_end_of_the_text() -> None:
    rows = Rows()
    assert rows.propose(rows.begin([5, 6, 7] * 3), most=8) == [[5, 6, 7, 5, 6, 7, 5, 6]]


def test_tokens_may_come_several_at_a_time() -> None:
    rows = Rows()
    row = rows.begin(list(range(20)))
    assert rows.propose(row) == [[]]
    rows.append(row, [3, 4, 5, 6])
    assert rows.propose(row) == [[7, 8, 9, 10, 11, 12]]
    rows.append(row, [7, 8, 9])
    assert rows.propose(row, most=2) == [[10, 11]]


def test_each_row_gets_at_most_what_it_may() -> None:
    rows = Rows()
    first = rows.begin([1, 2, 3, 4, 1, 2, 3])
    second = rows.begin([1, 2])
    third = rows.begin([7] * 9)
    table, proposer = rows.table, rows.proposer
    asked, most = np.array([third, first, second], np.int32), np.array([5, 1, 4], np.int32)
    table.reserve(asked, most)
    assert proposer.propose(asked, most, no_draw).tolist() == [5, 1, 0]


def test_earlier_outputs_are_looked_up_where_the_text_has_no_match() -> None:
    rows = Rows()
    rows.run([1], [10, 11, 12, 13, 14])
    row = rows.begin([9, 10, 11])
    assert rows.propose(row) == [[12, 13, 14]]
    rows.append(row, [12])
    assert rows.propose(row) == [[13, 14]]


def test_the_text_itself_goes_before_earlier_outputs_with_as_long_a_match() -> None:
    rows = Rows()
    rows.run([1], [30, 10, 11, 50, 51])
    assert rows.propose(rows.begin([10, 11, 40, 9, 10, 11]), most=1) == [[40]]
    assert rows.propose(rows.begin([10, 11, 40, 9, 30, 10, 11]), most=1) == [[50]]


def test_prompts_are_not_seen_by_others() -> None:
    rows = Rows()
    rows.run([20, 21, 22, 23], [10, 11, 12])
    assert rows.propose(rows.begin([20, 21])) == [[]]


def test_a_match_ends_where_an_output_does() -> None:
    rows = Rows()
    rows.run([1], [10, 11])
    rows.run([1], [12, 13])
    assert rows.propose(rows.begin([10, 11])) == [[]]
    assert rows.propose(rows.begin([11, 12])) == [[]]


def test_outputs_are_seen_once_their_request_is_gone() -> None:
    rows = Rows()
    talking, waiting = rows.begin([1]), rows.begin([10, 11])
    rows.append(talking, [10, 11, 12, 13])
    assert rows.propose(talking, waiting) == [[], []]
    rows.end(talking)
    assert rows.propose(waiting) == [[12, 13]]


@pytest.mark.parametrize(
    ("writer", "reader", "shared"),
    [
        ((), (), True),
        (("salt:a",), ("salt:a",), True),
        (("salt:a",), ("salt:b",), False),
        (("salt:a",), (), False),
        ((), ("salt:a",), False),
        (("salt:a", "adapter:b"), ("salt:a",), False),
        (("a", "b"), ("a', 'b",), False),
        (("a\0b",), ("a", "b"), False),
    ],
)
def test_only_the_same_tenant_sees_an_output(
    writer: tuple[str, ...], reader: tuple[str, ...], shared: bool
) -> None:
    rows = Rows()
    rows.run([1], [10, 11, 12, 13], *writer)
    assert rows.propose(rows.begin([10, 11], *reader)) == [[12, 13] if shared else []]


def test_what_was_output_before_a_preemption_is_kept_once() -> None:
    rows = Rows()
    lookup = rows.proposer.lookup
    row = rows.begin([1, 2])
    rows.append(row, [10, 11, 12])
    tokens = rows.table.tokens(row).tolist()
    rows.end(row)
    kept = lookup.num_stored()
    row = rows.begin(tokens)
    assert rows.propose(row) == [[]]  # all of it has been said; nothing followed
    rows.append(row, [20, 21, 22])
    rows.end(row)
    assert lookup.num_stored() == kept + 4  # three tokens and an end
    assert rows.propose(rows.begin([11, 12]), rows.begin([20, 21])) == [[], [22]]


def test_a_request_without_output_keeps_nothing() -> None:
    rows = Rows()
    rows.run([1, 2, 3], [])
    assert rows.proposer.lookup.num_stored() == 0
    assert rows.proposer.lookup.num_tenants() == 0


def test_no_store_keeps_nothing() -> None:
    rows = Rows(store_tokens=0)
    rows.run([1], [10, 11, 12])
    assert rows.proposer.lookup.num_stored() == 0
    assert rows.propose(rows.begin([10, 11])) == [[]]


def test_the_store_keeps_its_bound_and_drops_the_oldest() -> None:
    limit = 2000
    rows = Rows(store_tokens=limit)
    lookup = rows.proposer.lookup
    for i in range(100):
        rows.run([1], range(1000 * i, 1000 * i + 90))
        assert lookup.num_stored() <= limit
    newest, oldest = rows.begin([99000, 99001]), rows.begin([0, 1])
    assert rows.propose(newest, oldest, most=2) == [[99002, 99003], []]
    assert lookup.bytes() <= 200 * limit


def test_an_output_longer_than_the_store_keeps_its_end() -> None:
    rows = Rows(store_tokens=1000)
    rows.run([9], range(100, 5000))
    assert rows.proposer.lookup.num_stored() <= 1000
    first, last = rows.begin([100, 101]), rows.begin([4990, 4991])
    assert rows.propose(first, last, most=2) == [[], [4992, 4993]]


def test_many_tenants_are_within_the_bound_too() -> None:
    limit = 6400
    rows = Rows(store_tokens=limit)
    lookup = rows.proposer.lookup
    for i in range(1000):
        rows.run([1], [2], f"salt:{i}")
        assert lookup.num_stored() <= limit
        assert lookup.num_tenants() <= limit // 64
    assert lookup.bytes() < 1000 * lookup.num_tenants()


def test_tenants_without_rows_or_outputs_are_forgotten() -> None:
    rows = Rows(store_tokens=0)
    lookup = rows.proposer.lookup
    live = [rows.begin([1], f"salt:{i}") for i in range(5)]
    assert lookup.num_tenants() == 5
    for row in live:
        rows.end(row)
    assert (lookup.num_tenants(), lookup.bytes()) == (0, 0)


def test_a_long_prompt_is_looked_at_in_several_calls() -> None:
    """Its row gets nothing meanwhile, while rows with few new tokens go on as ever."""
    operations = 2000
    rows = Rows(operations=operations)
    lookup = rows.proposer.lookup
    long = rows.begin(list(range(1000)) + [5, 6, 7])
    short = rows.begin([1, 2, 3, 4, 1, 2])
    calls = 0
    while True:
        before = lookup.num_operations()
        proposed = rows.propose(long, short)
        # Of one token, which may go over; and of the matches in earlier outputs.
        assert lookup.num_operations() - before <= operations + 100
        assert proposed[1] == [3, 4, 1]
        calls += 1
        if proposed[0]:
            break
        assert calls < 100
    assert calls > 2
    assert proposed[0] == [8, 9, 10, 11]


def test_long_outputs_come_to_the_store_in_several_calls() -> None:
    operations = 1000
    rows = Rows(operations=operations)
    lookup = rows.proposer.lookup
    rows.run([1], range(10, 2010))
    row = rows.begin([2000, 2001])
    proposed: list[list[list[int]]] = []
    while len(proposed) < 100 and [[2002, 2003, 2004]] not in proposed:
        before = lookup.num_operations()
        proposed.append(rows.propose(row))
        assert lookup.num_operations() - before <= operations + 200
    assert 2 < len(proposed) < 100
    assert not any(proposal for (proposal,) in proposed[:-1])


def test_work_of_a_step_does_not_grow_with_the_text() -> None:
    rng = np.random.default_rng(1)
    rows = Rows()
    for _ in range(10):
        rows.run([1], rng.integers(0, 50, 1000).tolist())
    live = [rows.begin(rng.integers(0, 50, 2000).tolist()) for _ in range(32)]
    for _ in range(40):
        rows.propose(*live)
    lookup = rows.proposer.lookup
    before = lookup.num_operations()
    for _ in range(50):
        for row in live:
            rows.append(row, [int(rng.integers(0, 50))])
        rows.propose(*live)
    assert lookup.num_operations() - before <= 50 * 32 * 60


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ((None, None), (2, 32)),
        ((5, None), (5, 32)),
        ((40, None), (40, 40)),
        ((None, 5), (2, 5)),
        ((None, 1), (1, 1)),
        ((3, 7), (3, 7)),
    ],
)
def test_lengths_that_are_not_given_fit_the_others(
    given: tuple[int | None, int | None], lengths: tuple[int, int]
) -> None:
    assert lookup_lengths(*given) == lengths


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (4, 3), (-1, -1)])
def test_lengths_that_cannot_be_are_refused(shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match="shortest <= longest"):
        Rows(shortest=shortest, longest=longest)


def test_misuse_is_refused_before_memory_is_touched() -> None:
    rows = Rows()
    row = rows.begin([1, 2, 1])
    rows.propose(row)
    with pytest.raises(ValueError, match="begun once"):
        rows.proposer.begin(row, ())
    for bad in (-1, row + 1, 1 << 20):
        with pytest.raises(ValueError, match="must be begun"):
            rows.proposer.lookup.propose(
                rows.table.token_ids,
                rows.table.token_ids.shape[1],
                np.array([bad], np.int32),
                np.array([1], np.int32),
                np.array([1], np.int32),
                np.zeros(1, np.int32),
                1,
            )
    with pytest.raises(ValueError, match="room in the table"):
        rows.proposer.propose(np.array([row], np.int32), np.array([10**6], np.int32), no_draw)
    rows.table.num_tokens[row] = 2
    with pytest.raises(ValueError, match="only grow"):
        rows.proposer.propose(np.array([row], np.int32), np.array([1], np.int32), no_draw)
    rows.proposer.forget(row)
    with pytest.raises(ValueError, match="only rows begun"):
        rows.proposer.forget(row)

"""The n-gram proposer through any sequence of requests, against the oracle's lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quire.kernels.batch.token_table import TokenTable
from quire.speculative.drafters.ngram import NgramProposer
from tests.sizes import sized
from tests.speculative.drafters.ngram_oracle import NgramOracle
from tests.speculative.drafters.test_ngram import no_draw

TOKENS = st.lists(st.integers(0, 3), max_size=12)
TENANTS = st.sampled_from(["", "a", "b"])


class Sequences(RuleBasedStateMachine):
    """Requests that come, get tokens and proposals, split off, start over and end."""

    @initialize(
        shortest=st.integers(1, 3),
        more=st.integers(0, 6),
        # Segments of 3, 10 and 100 tokens; no store at all.
        store_tokens=st.sampled_from([0, 4 * 68, 4 * 75, 4 * 165]),
    )
    def start(self, shortest: int, more: int, store_tokens: int) -> None:
        self.table = TokenTable(1, 1)
        self.proposer = NgramProposer(
            self.table, shortest=shortest, longest=shortest + more, store_tokens=store_tokens
        )
        self.oracle = NgramOracle(shortest, shortest + more, store_tokens)
        #: Row to its tenant and how many tokens it began with.
        self.live: dict[int, tuple[str, int]] = {}
        self.count = 0

    def begin(self, tokens: list[int], tenant: str) -> None:
        self.count += 1
        row = self.table.add(f"{self.count}", tokens, 1)
        self.proposer.begin(row, (tenant,) if tenant else ())
        self.live[row] = tenant, len(tokens)

    def forget(self, row: int) -> tuple[list[int], str]:
        tokens = self.table.tokens(row).tolist()
        tenant, begun_with = self.live.pop(row)
        self.proposer.forget(row)
        (request_id,) = (i for i, r in self.table.rows.items() if r == row)
        self.table.remove(request_id)
        self.oracle.keep(tenant, tokens[begun_with:])
        return tokens, tenant

    def append(self, row: int, tokens: list[int]) -> None:
        for token in tokens:
            self.table.append_tokens(np.array([row]), np.array([token], np.int32))

    @rule(prompt=TOKENS, tenant=TENANTS)
    def come(self, prompt: list[int], tenant: str) -> None:
        self.begin([0, *prompt], tenant)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=TOKENS)
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        self.append(data.draw(st.sampled_from(sorted(self.live))), tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), accepted=st.integers(0, 9))
    def propose(self, data: st.DataObject, accepted: int) -> None:
        rows = data.draw(st.lists(st.sampled_from(sorted(self.live)), min_size=1, unique=True))
        most = data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
        asked, limits = np.array(rows, np.int32), np.array(most, np.int32)
        self.table.reserve(asked, limits + 1)
        counts = self.proposer.propose(asked, limits, no_draw)
        for row, limit, count in zip(rows, most, counts.tolist(), strict=True):
            tokens = self.table.tokens(row).tolist()
            at = len(tokens)
            proposed = self.table.token_ids[row, at : at + count].tolist()
            assert proposed == self.oracle.propose(self.live[row][0], tokens, limit)
            self.append(row, proposed[:accepted])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def split_off(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.live)))
        self.begin(self.table.tokens(row).tolist(), self.live[row][0])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def start_over(self, data: st.DataObject) -> None:
        self.begin(*self.forget(data.draw(st.sampled_from(sorted(self.live)))))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.forget(data.draw(st.sampled_from(sorted(self.live))))

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        lookup = self.proposer.lookup
        assert lookup.num_stored() == self.oracle.num_stored()
        for row in list(self.live):
            self.forget(row)
        kept = sum(1 for segments in self.oracle.tenants.values() if segments)
        assert lookup.num_tenants() == kept


@pytest.mark.parametrize("steps", [20, 80])
def test_any_sequence_of_requests_gets_what_the_oracle_proposes(steps: int) -> None:
    machine = settings(max_examples=sized(25, 150), stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(Sequences, settings=machine)

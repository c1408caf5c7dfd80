"""The proposers of an engine, made as its settings say."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.speculative_config import SpeculativeMethod
from quire.kernels.token_table import TokenTable
from quire.speculative.ngram import NgramProposer, lookup_lengths
from quire.speculative.proposer import Proposer


def create_proposers(
    methods: Sequence[SpeculativeMethod], table: TokenTable
) -> dict[str, Proposer]:
    """Return a proposer for each method, by its name."""
    return {method.method: _create(method, table) for method in methods}


def _create(method: SpeculativeMethod, table: TokenTable) -> Proposer:
    if method.method == "ngram":
        shortest, longest = lookup_lengths(method.prompt_lookup_min, method.prompt_lookup_max)
        return NgramProposer(table, shortest=shortest, longest=longest)
    raise NotImplementedError(method.method)

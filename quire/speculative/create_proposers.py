"""The proposers of an engine, made as its settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from quire.core.speculative_config import MethodName, SpeculativeMethod
from quire.kernels.batch.token_table import TokenTable
from quire.speculative.drafters.ngram import NgramProposer, lookup_lengths
from quire.speculative.proposer import Proposer

#: Makes the proposer of a drafter that is loaded.
Maker = Callable[[TokenTable], Proposer]


def create_proposers(
    methods: Sequence[SpeculativeMethod], table: TokenTable, makers: Mapping[MethodName, Maker]
) -> dict[str, Proposer]:
    """Return a proposer for each method, by its name.

    Args:
        methods: The engine's methods.
        table: Tokens and blocks of its requests.
        makers: Makers of proposers, for the methods whose drafters have weights.
    """
    return {method.method: _create(method, table, makers) for method in methods}


def _create(
    method: SpeculativeMethod, table: TokenTable, makers: Mapping[MethodName, Maker]
) -> Proposer:
    if method.method == "ngram":
        shortest, longest = lookup_lengths(method.prompt_lookup_min, method.prompt_lookup_max)
        return NgramProposer(table, shortest=shortest, longest=longest)
    return makers[method.method](table)

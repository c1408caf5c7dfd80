"""The target's hidden states for proposers that read them: which ones they want, and a step's.

T positions, B rows of the token table, D model dim of the target, C captured layers, S = D for
states of the final norm, S = C D for captured ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from quire.kernels.backend import Array
from quire.kernels.batch.token_table import IntArray
from quire.speculative.proposer import Proposer


@dataclass(frozen=True, slots=True)
class WantedStates:
    """The hidden states that a proposer reads.

    Attributes:
        of_every_position: Whether states of all positions that hold are read, instead of only the
            one that the last token was drawn from.
        layers: Ascending layers of the target at whose entry the residual stream is read; empty
            for what the final norm makes of the last one.
    """

    of_every_position: bool
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputedStates:
    """States of positions that a step of the target has computed, and whose tokens hold.

    Attributes:
        rows: (B,) int32, each once.
        starts: (B,) int32, each row's first position.
        counts: (B,) int32, positions of each row, at least 1.
        states: (T, S), the rows' one after another; to be read before the next step.
    """

    rows: IntArray
    starts: IntArray
    counts: IntArray
    states: Array


@runtime_checkable
class StateReader(Proposer, Protocol):
    """A proposer that is told the states of its rows."""

    @property
    def wanted_states(self) -> WantedStates:
        """The states that it is told."""
        ...

    def observe(self, computed: ComputedStates) -> None:
        """Take the states of a step, whose tokens are in the table.

        Rows that drew a token have one more token than positions computed, or more by a grammar.
        """
        ...

    def fork(self, parent: int, child: int) -> None:
        """Copy all that is known of row ``parent`` to row ``child``, which was begun before."""
        ...

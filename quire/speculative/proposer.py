"""Proposers of tokens, and the draws they are given; whether tokens hold is decided elsewhere.

A proposal costs the target a row of a step and never changes an answer: every token of an answer
is drawn from the target's own logits. B sequences, V vocabulary of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from quire.core.model.forward_work import ForwardWork
from quire.kernels.batch.forward_batch import Array
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import IntArray
from quire.speculative.token_tree import TreeShape

Chances = npt.NDArray[np.float32]


class DraftDraw(Protocol):
    """Draws as the target will at the same position: with its settings, its seed, its grammar.

    The draws of two distributions that are alike then agree most of the time. The grammar says only
    what may come after tokens that are known: what comes after proposed ones is drawn without it,
    since computing that may take long.
    """

    def __call__(self, logits: Array, rows: IntArray, lengths: IntArray) -> IntArray:
        """Draw one token for each sequence.

        Args:
            logits: (B, V) float32, overwritten.
            rows: (B,) rows of the token table, each once.
            lengths: (B,) tokens of the row before the draw, proposed ones included.

        Returns:
            (B,) int32; -1 where no token is possible.
        """
        ...


class ChainDraw(DraftDraw, Protocol):
    """A draw that a backend may do by itself, for a chain of tokens."""

    def plain(self, rows: IntArray, lengths: IntArray) -> SamplingBatch | None:
        """Return what a draw needs besides logits, on the host; None where it needs more than that.

        A draw of the token after it differs by the position alone. The next draw overwrites it.
        """
        ...


class Rank(Protocol):
    """Ranks the tokens that the target may draw at a position, as likely as :class:`DraftDraw`."""

    def __call__(
        self, logits: Array, rows: IntArray, lengths: IntArray, count: int
    ) -> tuple[IntArray, Chances]:
        """Rank the candidates of each sequence.

        Args:
            logits: (B, V) float32, not changed.
            rows, lengths: The same as in :class:`DraftDraw`; a row may occur several times.
            count: C candidates wanted of each, at least 1.

        Returns:
            (B, C) int32, best first, -1 where there is none; (B, C), chance of each, falling.
        """
        ...


class Proposer(Protocol):
    """Proposes tokens for rows of the token table that it was made with.

    Rows are those of live requests. A row that was begun is forgotten before it is begun again.
    """

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row whose tokens are in the table: of a request that is new or starts over.

        Args:
            row: Row of the table.
            extra_keys: Keys of the request (:class:`~quire.core.engine_request.EngineRequest`);
                only requests with the same ones may learn from each other's tokens.
        """
        ...

    def propose(self, rows: IntArray, most: IntArray, draw: ChainDraw) -> IntArray:
        """Write proposed tokens into the table, after the tokens that the rows have.

        ``token_ids`` has room for them and ``num_tokens`` stays as it is.

        Args:
            rows: (B,) int32, each once.
            most: (B,) int32, tokens that each row may get, at least 1.
            draw: The target's draw.

        Returns:
            (B,) int32, tokens that each row got; may be 0.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy what is kept by block: ``(source, destination)`` of the target's blocks."""
        ...

    def forget(self, row: int) -> None:
        """Release a row: its request has ended or starts over; the table still has its tokens."""
        ...


@runtime_checkable
class PacedProposer(Proposer, Protocol):
    """A proposer that computes known tokens for about as long as the target's steps take."""

    def step_took(self, seconds: float) -> None:
        """Note how long a step of the target took without proposing."""
        ...


@runtime_checkable
class ComputingProposer(Proposer, Protocol):
    """A proposer that has weights of its own, or computes with the target's."""

    def take_work(self) -> ForwardWork:
        """Return what it has computed since the last call, estimated."""
        ...


@runtime_checkable
class TreeProposer(Proposer, Protocol):
    """A proposer that knows several candidates for a token."""

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write the tokens of trees into the table, after the tokens that the rows have.

        Args:
            rows, most: The same as in :meth:`Proposer.propose`.
            shape: Shape of each tree.
            rank: The target's ranking.

        Returns:
            Parents of each row's tokens, each before its children; -1 at the top.
        """
        ...

"""A layer's experts, some on each of several ranks; bit for bit those of one process, if asked.

All ranks have all rows and their routes. Each multiplies the routed rows of its own experts, rows
are exchanged, and the outputs of a row's experts are summed in the order of the router. T rows, k
experts of each, R = T k routed rows, D model dim.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.distributed.group import Group
from quire.kernels.backend import Array, Backend
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.packed_weights import PackedWeights
from quire.layers.parallel.expert_placement import (
    ExpertDivision,
    ExpertPlacement,
    balanced_placement,
)
from quire.layers.parallel.own_experts import MakeExperts, OwnExperts, combine_in_order
from quire.layers.parallel.parallel_linear import Scratch
from quire.planner.parallel_costs import ROWS_TO_SHARE
from quire.settings.parallel_layout import split

log = logging.getLogger(__name__)

#: Part of the busiest rank's rows that a move of experts must save, at least.
LEAST_GAIN = 0.05


class RankExperts:
    """The experts of a layer, some of them on this rank.

    Args:
        backend: The backend that computes.
        group: The ranks.
        scratch: Memory for messages.
        placement: The ranks that have each expert at first.
        make: Call that creates this rank's experts.
        exact: Whether rows are exchanged and summed in the order of the router; else each rank sums
            up the rows it has, and one message adds these sums.
        balance: The rule by which experts move.
        first_step: Steps by which this layer's first move is later, so that layers take turns.

    Attributes:
        placement: The placement given here, or last computed by :meth:`rebalance`.
        num_rows: Rows of all ranks that were routed to each expert since then, by expert.
        nbytes, packed: Bytes and packed weights of this rank's experts.
    """

    def __init__(
        self,
        backend: Backend,
        group: Group,
        scratch: Scratch,
        placement: ExpertPlacement,
        make: MakeExperts,
        exact: bool,
        balance: ExpertDivision,
        first_step: int = 0,
    ) -> None:
        self._backend, self._group, self._scratch = backend, group, scratch
        self._exact, self.placement = exact, placement
        self.num_rows = np.zeros(len(placement.ranks), np.int64)
        self._own = OwnExperts(backend, make, placement.of(group.rank))
        self.nbytes = self._own.nbytes
        self._slots = max(len(placement.of(rank)) for rank in range(group.size))
        self._interval, self._steps = balance.interval, -first_step

    @property
    def packed(self) -> Sequence[Sequence[PackedWeights]]:
        """Packed weights of this rank's experts: gate and up of each, then down of each."""
        return self._own.packed

    @property
    def imbalance(self) -> float:
        """Rows of the busiest rank over the ranks' mean, since the last :meth:`rebalance`."""
        return self.placement.imbalance(self.num_rows.tolist())

    def rebalance(self) -> bool:
        """Place experts anew by the rows they had; those that move are read from the checkpoint.

        All ranks call it between the same two steps; no message is sent, as all ranks have counted
        the same rows.

        Returns:
            Whether any expert moved; none does for less than :data:`LEAST_GAIN`.
        """
        rows, size = self.num_rows.tolist(), self._group.size
        found = balanced_placement(rows, size, self._slots)
        before, after = self.placement.imbalance(rows), found.imbalance(rows)
        is_worth = after < (1 - LEAST_GAIN) * before
        if is_worth:
            self.placement = found
            self._own.place(found.of(self._group.rank))
            log.debug(
                "experts moved: the busiest rank's rows over the mean %.2f -> %.2f", before, after
            )
        self.num_rows[:] = 0
        return is_worth

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        """Mix the experts of each row; see :class:`quire.kernels.backend.Experts`."""
        self._steps += 1
        if self._interval and self._steps > self._interval:
            self._steps = 1
            self.rebalance()
        routed = self._backend.to_numpy(ids)
        flat = routed.reshape(-1)
        self.num_rows += np.bincount(flat, minlength=len(self.num_rows))
        owners = self.placement.owners(flat)
        own = np.flatnonzero(owners == self._group.rank)
        made = self._multiply(x, flat[own], own // routed.shape[1], rows, len(flat))
        if not self._exact:
            return self._reduce(made, own, weights, out)
        if len(routed) < ROWS_TO_SHARE * self._group.size:
            gathered = self._gather(made, owners)
            return combine_in_order(self._backend, gathered, _in_turn(owners), weights, out)
        return self._share(made, own, owners, weights, out)

    def _multiply(
        self,
        x: Array,
        experts: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int64],
        rows: BatchRows | None,
        num_routed: int,
    ) -> Array:
        """Return the outputs of this rank's experts for some tokens' rows, (own routed rows, D).

        They are the first of ``num_routed`` rows of the scratch "outputs".
        """
        count, backend = len(experts), self._backend
        made = self._scratch.take("outputs", num_routed, x.shape[1])[:count]
        if not count:
            return made
        given = self._scratch.take("inputs", count, x.shape[1])
        backend.gather_rows(x, tokens.astype(np.int32), given)
        if rows is not None:
            indices = tokens if rows.indices is None else backend.to_numpy(rows.indices)[tokens]
            rows = BatchRows(rows.batch, indices.astype(np.int32))
        return self._own.multiply(given, experts, made, rows)

    def _gather(self, made: Array, owners: npt.NDArray[np.int64]) -> Array:
        """Return the routed rows of all ranks, rank after rank."""
        width, size = made.shape[1], self._group.size
        sizes = [int(n) * width for n in np.bincount(owners, minlength=size)]
        gathered = self._scratch.take("gathered", 1, len(owners) * width)
        self._group.all_gather_columns(made.reshape(1, -1), sizes, gathered)
        return gathered.reshape(-1, width)

    def _share(
        self,
        made: Array,
        own: npt.NDArray[np.int64],
        owners: npt.NDArray[np.int64],
        weights: Array,
        out: Array,
    ) -> Array:
        """Send routed rows to the ranks that sum up their tokens, and the sums to all ranks."""
        (num_rows, top_k), width = weights.shape, made.shape[1]
        shares = split(num_rows, self._group.size)
        cuts = np.searchsorted(own, [share.start * top_k for share in shares[1:]])
        mine = shares[self._group.rank]
        own_owners = owners[mine.start * top_k : mine.stop * top_k]
        received = self._scratch.take("gathered", len(own_owners), width)
        counts = np.bincount(own_owners, minlength=self._group.size)
        parts = np.split(received, np.cumsum(counts)[:-1])
        self._group.all_to_all(np.split(made, cuts), parts)
        sums = self._scratch.take("inputs", len(mine), width)
        if mine:
            own_weights, order = weights[mine.start : mine.stop], _in_turn(own_owners)
            combine_in_order(self._backend, received, order, own_weights, sums)
        sizes = [len(share) * width for share in shares]
        self._group.all_gather_columns(sums.reshape(1, -1), sizes, out.reshape(1, -1))
        return out

    def _reduce(self, made: Array, own: npt.NDArray[np.int64], weights: Array, out: Array) -> Array:
        """Sum up the routed rows of this rank, and these sums over ranks."""
        count, size = len(made), weights.size
        y = self._scratch.take("outputs", size, made.shape[1])
        y[count:] = 0  # what others multiply is their part of the sum
        places = np.full(size, size - 1, np.int32)
        places[own] = np.arange(count, dtype=np.int32)
        self._backend.combine_experts(y, places.reshape(weights.shape), weights, out)
        return self._group.all_reduce(out)


def _in_turn(owners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the order of routed rows that lie rank after rank."""
    return np.argsort(owners, kind="stable")

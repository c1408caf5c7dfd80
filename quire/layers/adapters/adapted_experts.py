"""Experts of a layer, to each of which a row's adapter adds its own; other rows keep their bits.

T rows, k experts of each, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, Experts
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.low_rank import group_by, group_rows
from quire.layers.adapters.adapter_slots import AdapterSlots, Present, apply_changes

#: Changes of one product, and the routed rows t * k + j that they are of.
Changes = tuple[Sequence[Present], npt.NDArray[np.int32]]


class AdaptedExperts:
    """Experts that adapters may be added to.

    Args:
        backend: The backend that computes.
        experts: The experts without adapters.
        gate_up, down: The adapters' changes of each expert's matrices, by expert.
    """

    def __init__(
        self,
        backend: Backend,
        experts: Experts,
        gate_up: Sequence[AdapterSlots],
        down: Sequence[AdapterSlots],
    ) -> None:
        self._backend, self._experts = backend, experts
        self._gate_up, self._down = gate_up, down
        self.nbytes, self.packed = experts.nbytes, experts.packed
        self.changed = experts.changed

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        """Mix the experts of each row, with what its adapter makes of them."""
        up, down = self._present(ids, rows)
        if not up[0] and not down[0]:
            return self._experts(x, ids, weights, out, rows)
        changes = partial(self._apply, up), partial(self._apply, down)
        return self._experts.changed(x, ids, weights, out, *changes)

    def _present(self, ids: Array, rows: BatchRows | None) -> tuple[Changes, Changes]:
        """Return what adapters of the rows make of the experts that these have."""
        sides = (self._gate_up, self._down)
        if rows is None or rows.batch.adapters is None:
            return _NOTHING, _NOTHING
        if not any(slots.is_used for side in sides for slots in side):
            return _NOTHING, _NOTHING
        of_rows = group_rows(rows, self._backend.to_numpy)
        lengths = [end - begin for begin, end in of_rows.bounds]
        slots = np.repeat(np.array(of_rows.keys, np.int64), lengths)
        chosen, count = self._backend.to_numpy(ids)[of_rows.rows], len(self._down)
        pairs = of_rows.rows[:, None] * chosen.shape[1] + np.arange(chosen.shape[1])
        groups = group_by((slots[:, None] * count + chosen).reshape(-1))
        routed = pairs.reshape(-1)[groups.rows].astype(np.int32)
        found: tuple[list[Present], list[Present]] = [], []
        for key, (begin, end) in zip(groups.keys, groups.bounds, strict=True):
            slot, expert = divmod(key, count)
            for present, side in zip(found, sides, strict=True):
                change = side[expert].get(slot)
                if change is not None:
                    present.append((change, begin, end))
        return (found[0], routed), (found[1], routed)

    def _apply(self, changes: Changes, x: Array, y: Array, places: npt.NDArray[np.int32]) -> None:
        present, routed = changes
        apply_changes(self._backend, present, places.reshape(-1)[routed], x, y)


_NOTHING: Changes = ((), np.empty(0, np.int32))

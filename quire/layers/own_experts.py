"""The experts of a layer that are here, where others are elsewhere: routed rows, one expert each.

What a row's expert makes of it depends on that row alone, so that whoever multiplies it, and along
with which others, changes no bit; rows are then summed in the order of the router.

R routed rows, T tokens with k experts each, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, MixedExperts
from quire.kernels.forward_batch import BatchRows
from quire.kernels.packed_weights import PackedWeights

#: What was packed of experts, by their numbers: of gate and up, and of down.
Packed = Mapping[int, tuple[Sequence[PackedWeights], Sequence[PackedWeights]]]
#: Makes experts of their numbers; what is packed of them is not read.
MakeExperts = Callable[[Sequence[int], Packed], MixedExperts]


class OwnExperts:
    """Some experts of a layer.

    Args:
        backend: Computes.
        make: Makes them.
        numbers: Which, in their order.

    Attributes:
        numbers: As given, or as :meth:`place` was.
    """

    def __init__(self, backend: Backend, make: MakeExperts, numbers: Sequence[int]) -> None:
        self._backend, self._make = backend, make
        self._experts: MixedExperts | None = None
        self.numbers: Sequence[int] = ()
        self._places = np.empty(0, np.int32)  # by number, which of these it is
        self.place(numbers)

    @property
    def nbytes(self) -> int:
        """Memory of the packed weights."""
        return 0 if self._experts is None else self._experts.nbytes

    @property
    def packed(self) -> Sequence[Sequence[PackedWeights]]:
        """What was packed: of each expert gate and up, then of each one's down."""
        return () if self._experts is None else self._experts.packed

    def place(self, numbers: Sequence[int]) -> None:
        """Have these experts; what is packed of them is kept."""
        if numbers == self.numbers:
            return
        count, packed = len(self.numbers), self.packed
        held = {}
        if packed:
            held = {n: (packed[i], packed[count + i]) for i, n in enumerate(self.numbers)}
        self._experts = self._make(numbers, held) if numbers else None
        self.numbers = numbers
        self._places = np.zeros(max(numbers, default=-1) + 1, np.int32)
        self._places[list(numbers)] = np.arange(len(numbers))

    def multiply(
        self,
        x: Array,
        experts: npt.NDArray[np.int32],
        out: Array,
        rows: BatchRows | None = None,
    ) -> Array:
        """Multiply each row with one expert; from any thread, as long as none moves.

        Args:
            x: (R, D).
            experts: (R,), numbers that are among :attr:`numbers`.
            out: (R, D), written and returned.
            rows: What the rows are in a step, for what adapters add.
        """
        if self._experts is None or not len(experts):
            return out
        local = self._places[experts].reshape(-1, 1)
        ones = np.ones(local.shape, np.float32)  # its output, bit for bit
        ids, weights = (self._backend.from_numpy(one) for one in (local, ones))
        return self._experts(x, ids, weights, out, rows)


def combine_in_order(
    backend: Backend, y: Array, order: npt.NDArray[np.int64], weights: Array, out: Array
) -> Array:
    """Sum up routed rows that lie in another order than the router's.

    Args:
        backend: Computes.
        y: (T k, D).
        order: (T k,), which of the router's each is.
        weights: (T, k).
        out: (T, D), written and returned.
    """
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    shaped = backend.from_numpy(places.reshape(tuple(weights.shape)))
    return backend.combine_experts(y, shaped, weights, out)

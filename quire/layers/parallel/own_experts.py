"""The experts of a layer that this process has; it multiplies routed rows with one expert each.

An expert's output for a row depends on that row alone, so neither the process that multiplies it
nor the other rows of the product change a bit; rows are then summed in the router's order.

R routed rows, T tokens with k experts each, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, MixedExperts
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.packed_weights import PackedWeights

#: Packed weights of experts, by their numbers: of gate and up, and of down.
Packed = Mapping[int, tuple[Sequence[PackedWeights], Sequence[PackedWeights]]]
#: Creates experts by their numbers; those whose packed weights are given are not read.
MakeExperts = Callable[[Sequence[int], Packed], MixedExperts]


class OwnExperts:
    """Some experts of a layer.

    Args:
        backend: The backend that computes.
        make: Call that creates the experts.
        numbers: The experts' numbers, in their order.

    Attributes:
        numbers: The numbers given here, or last to :meth:`place`.
    """

    def __init__(self, backend: Backend, make: MakeExperts, numbers: Sequence[int]) -> None:
        self._backend, self._make = backend, make
        self._experts: MixedExperts | None = None
        self.numbers: Sequence[int] = ()
        self._places = np.empty(0, np.int32)  # by number, its index in numbers
        self.place(numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return 0 if self._experts is None else self._experts.nbytes

    @property
    def packed(self) -> Sequence[Sequence[PackedWeights]]:
        """Packed weights: gate and up of each expert, then down of each."""
        return () if self._experts is None else self._experts.packed

    def place(self, numbers: Sequence[int]) -> None:
        """Replace the experts by these; packed weights of experts that stay are kept."""
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
        """Multiply each row with one expert; from any thread, as long as no expert moves.

        Args:
            x: (R, D).
            experts: (R,), numbers that are among :attr:`numbers`.
            out: (R, D), written and returned.
            rows: The rows' places in the step, for adapters.
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
        backend: The backend that computes.
        y: (T k, D).
        order: (T k,), index of each row in the router's order.
        weights: (T, k).
        out: (T, D), written and returned.
    """
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    shaped = backend.from_numpy(places.reshape(tuple(weights.shape)))
    return backend.combine_experts(y, shaped, weights, out)

"""Linears that several ranks have a share of.

Where outputs are divided, each is one rank's sum over all inputs: neither how many ranks there are
nor how weights are held changes a bit. Where inputs are, sums are added up, which takes one message
in place of two. T rows, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.distributed.group import Group
from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows


class Scratch:
    """Memory of what goes between ranks, used by one linear at a time.

    Args:
        backend: The backend that allocates.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._buffers: dict[str, Array] = {}

    def take(self, kind: str, num_rows: int, width: int) -> Array:
        """Return (num_rows, width) float32 that is overwritten when ``kind`` is taken again."""
        count = num_rows * width
        buffer = self._buffers.get(kind)
        if buffer is None or buffer.shape[0] < count:
            buffer = self._backend.empty((count,))
            self._buffers[kind] = buffer
        return buffer[:count].reshape(num_rows, width)


class _Wrapped:
    """A linear with the attributes and rows of the one inside it."""

    def __init__(self, linear: Linear, scratch: Scratch) -> None:
        self._linear, self._scratch = linear, scratch
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the rows of the linear inside."""
        return self._linear.lookup(ids, out, rows)


class GatheredLinear(_Wrapped):
    """A linear of inputs that lie on several ranks, each of which has some of its outputs.

    Args:
        group: The ranks.
        linear: The product of all inputs to this rank's outputs.
        scratch: Memory for messages.
        inputs: Widths of the ranks' inputs; None where each rank has all.
        outputs: Widths of the ranks' outputs; None where each rank has all.
    """

    def __init__(
        self,
        group: Group,
        linear: Linear,
        scratch: Scratch,
        inputs: Sequence[int] | None,
        outputs: Sequence[int] | None,
    ) -> None:
        super().__init__(linear, scratch)
        self._group, self._inputs, self._outputs = group, inputs, outputs
        if inputs is not None:
            self.in_features = inputs[group.rank]
        if outputs is not None:
            self.out_features = sum(outputs)

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply this rank's inputs (T, inputs) to all outputs (T, out_features)."""
        num_rows, take = x.shape[0], self._scratch.take
        if self._inputs is not None:
            whole = take("inputs", num_rows, sum(self._inputs))
            x = self._group.all_gather_columns(x, self._inputs, whole)
        if out is None:
            out = np.empty((num_rows, self.out_features), np.float32)
        if self._outputs is None:
            return self._linear(x, out, rows)
        own = take("outputs", num_rows, self._outputs[self._group.rank])
        return self._group.all_gather_columns(self._linear(x, own, rows), self._outputs, out)


class ReducedLinear(_Wrapped):
    """A linear of some inputs on each rank, whose products are added up in the order of ranks.

    It rounds differently from one rank alone, which sums over all inputs in one go.

    Args:
        group: The ranks.
        linear: The product of this rank's inputs to all outputs.
        scratch: Memory for messages.
    """

    def __init__(self, group: Group, linear: Linear, scratch: Scratch) -> None:
        super().__init__(linear, scratch)
        self._group = group

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply this rank's inputs (T, in_features) to all outputs (T, out_features)."""
        return self._group.all_reduce(self._linear(x, out, rows))


class OwnOutputs(_Wrapped):
    """A rank's outputs of a linear that each rank has whole, as its rows do not stand alone.

    Args:
        linear: The linear of all outputs.
        scratch: Memory for messages.
        columns: Indices of the rank's outputs.
    """

    def __init__(self, linear: Linear, scratch: Scratch, columns: npt.NDArray[np.int64]) -> None:
        super().__init__(linear, scratch)
        self.out_features, self._columns = len(columns), columns

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, in_features) to (T, out_features)."""
        whole = self._scratch.take("outputs", x.shape[0], self._linear.out_features)
        own: Array = self._linear(x, whole, rows)[:, self._columns]
        if out is None:
            return own
        out[...] = own
        return out


class VocabularyLinear(_Wrapped):
    """An embedding and a head of tokens that are divided over ranks.

    Rank 0, which samples, gets all logits; the others give theirs.

    Args:
        group: The ranks.
        linear: D to this rank's tokens.
        scratch: Memory for messages.
        tokens: The tokens of each rank, in order.
    """

    def __init__(
        self, group: Group, linear: Linear, scratch: Scratch, tokens: Sequence[range]
    ) -> None:
        super().__init__(linear, scratch)
        self._group, self._own = group, tokens[group.rank]
        self._widths = [len(part) for part in tokens]
        self._starts = np.array([part.start for part in tokens])
        if group.rank == 0:
            self.out_features = sum(self._widths)

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, D) to (T, V) on rank 0, to the logits of its own tokens on others."""
        if out is None:
            out = np.empty((x.shape[0], self.out_features), np.float32)
        is_root = self._group.rank == 0
        own = self._scratch.take("outputs", x.shape[0], len(self._own)) if is_root else out
        own = self._linear(x, own, rows)
        self._group.gather_columns(own, self._widths, out if is_root else None)
        return out

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the rows ``ids`` (T,), each from the rank that has it, as (T, D)."""
        count, width = ids.shape[0], self.in_features
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        order = np.argsort(owners, kind="stable")
        sizes = [int(size) * width for size in np.bincount(owners, minlength=self._group.size)]
        own = np.ascontiguousarray(ids[owners == self._group.rank] - self._own.start)
        found = self._scratch.take("outputs", len(own), width)
        if len(own):
            self._linear.lookup(own, found)
        gathered = self._scratch.take("inputs", 1, count * width)
        self._group.all_gather_columns(found.reshape(1, -1), sizes, gathered)
        if out is None:
            out = np.empty((count, width), np.float32)
        out[order] = gathered.reshape(count, width)
        return out

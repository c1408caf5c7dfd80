"""A model's own weights, read again for adapters that depend on them: DoRA's norms, old biases.

They are those of the checkpoint; what is rounded there is unpacked. O outputs.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quire.checkpoints.tensor_source import TensorSource
from quire.layers.adapters.adapter_slots import AdapterPlace
from quire.models.arranged_tensors import arrange
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import map_weights, open_tensors

Floats = npt.NDArray[np.float32]
#: Elements of the rows whose norms are computed at once, so that sums of large matrices stay small.
ELEMENTS = 1 << 22


class BaseWeights:
    """Weights of a checkpoint as kernels take them.

    Args:
        path: A folder or a GGUF file; nothing is read before it is asked for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _tensors(self) -> TensorSource:
        config = read_model_config(self._path)
        tensors = open_tensors(self._path, config)
        return arrange(tensors, map_weights(tensors, config))

    def biases(self, place: AdapterPlace) -> Floats:
        """Return a linear's biases (O,); zeros where it has none."""
        if not place.biased:
            return np.zeros(sum(place.rows), np.float32)
        return np.concatenate([self._read(f"{module}.bias") for module in place.stored])

    def norms(self, place: AdapterPlace, added: list[tuple[int, Floats, Floats]]) -> Floats:
        """Return the norms (O,) of a linear's rows, with products added to some of them.

        Args:
            place: The linear.
            added: First row of each product, and its matrices (rows, R) and (R, inputs).
        """
        first, norms = 0, []
        for module in place.stored:
            matrix = self._read(f"{module}.weight")
            if place.transposed:
                matrix = matrix.T
            step = max(1, ELEMENTS // matrix.shape[1])
            for begin in range(0, len(matrix), step):
                rows = matrix[begin : begin + step].copy()
                start = first + begin
                for at, up, down in added:
                    low, high = max(start, at), min(start + len(rows), at + len(up))
                    if low < high:
                        rows[low - start : high - start] += up[low - at : high - at] @ down
                norms.append(np.sqrt(np.einsum("oi,oi->o", rows, rows)))
            first += len(matrix)
        return np.concatenate(norms)

    def _read(self, name: str) -> Floats:
        values: Floats = np.array(self._tensors.tensor(name).float32())
        self._tensors.release(name)
        return values

"""GGUF's matrices taken apart: what the simulation of a product computes with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import FORMS, unpack
from quire.checkpoints.gguf.gguf_vector_types import unpack_vectors
from quire.kernels.matrices.quantized_tensor import SCALE_VALUES, QuantizedTensor
from quire.kernels.matrices.vector_codes import VECTOR_CODES


@dataclass(frozen=True, slots=True)
class TwoLevelTensor(QuantizedTensor):
    """A matrix whose scales and offsets are bytes times a number for each 256 columns.

    Attributes:
        super_scales: (N, K / 256) float16.
        super_offsets: The same for offsets, or None.
    """

    super_scales: np.ndarray | None = None
    super_offsets: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check nothing: kernels pack such matrices from blocks only."""


def unpack_rows(name: str, rows: np.ndarray) -> QuantizedTensor:
    """Return a matrix of a GGUF type with a code for each value, nothing lost.

    Args:
        name: One of :data:`quire.checkpoints.gguf.gguf_types.QUANTIZED`.
        rows: (N, bytes of a row) uint8.
    """
    form, blocks = FORMS[name], rows.reshape(-1, LAYOUTS[name].block_bytes)

    def of_rows(part: np.ndarray | None) -> np.ndarray | None:
        return None if part is None else part.reshape(len(rows), -1)

    shared = {"name": "w", "bits": form.bits, "group_size": form.group_size, "zero": form.zero}
    if form.vectors:
        parts = unpack_vectors(name, blocks)
        odd = parts.scales.astype(np.float32) * 2 + 1
        step = np.float32(VECTOR_CODES[name].step)
        return QuantizedTensor(
            **shared,
            codes=of_rows((parts.values.astype(np.int16) + form.zero).astype(np.uint8)),
            scales=of_rows(odd * parts.super_scales.astype(np.float32) * step),
        )
    groups = unpack(name, blocks)
    shared |= {"codes": of_rows(groups.codes), "scales": of_rows(groups.scales)}
    shared |= {"offsets": of_rows(groups.offsets)}
    if form.code_book is not None:
        shared["code_book"] = np.array(form.code_book, np.float32)
    if groups.super_scales is None:
        scale_type = form.scale_type if form.scale_type in SCALE_VALUES else ""
        return QuantizedTensor(**shared, scale_type=scale_type)
    supers = of_rows(groups.super_scales), of_rows(groups.super_offsets)
    return TwoLevelTensor(**shared, super_scales=supers[0], super_offsets=supers[1])

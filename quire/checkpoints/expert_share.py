"""The share of a checkpoint's tensor that is a tensor of ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """An expert's matrix or bias as a share of a stored tensor; all of it where only names differ.

    Attributes:
        stored: The tensor's name.
        expert: Index among the E experts, or all of them: a router.
        rows: Slice of the outputs.
        is_transposed: Whether outputs are the last dim.
        dtype: Type, in the name that safetensors has for it.
        shape: Shape of the share.
        nbytes: Bytes of the share.
    """

    stored: str
    expert: int | slice
    rows: slice
    is_transposed: bool
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """Cut the share out; a copy where it is not in one piece."""
        whole = tensor[self.expert]
        outputs = whole.T if self.is_transposed else whole
        return np.ascontiguousarray(outputs[self.rows]).reshape(self.shape)

"""What of a checkpoint's tensors is a tensor of ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """What an expert's matrix or bias has of a stored tensor; all, where another name is meant.

    Attributes:
        stored: The tensor's name.
        expert: Which of E, or all of them: a router.
        rows: Which outputs.
        is_transposed: Outputs are the last dim.
        dtype: As safetensors names it.
        shape: Of the share.
        nbytes: Of the share.
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

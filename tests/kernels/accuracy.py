"""How exact a float32 kernel must be: at most twice as far from float64 as torch, plus a little."""

from __future__ import annotations

import numpy as np
import torch


def assert_as_exact_as_torch(got: np.ndarray, theirs: torch.Tensor, exact: np.ndarray) -> None:
    """Compare the greatest errors of both against ``exact``, float64."""
    if got.size == 0:
        return
    our_error = np.abs(got - exact).max()
    their_error = np.abs(theirs.double().numpy() - exact).max()
    tiny = 1e-7 * max(1.0, np.abs(exact).max())
    assert our_error <= 2 * their_error + tiny, (our_error, their_error)

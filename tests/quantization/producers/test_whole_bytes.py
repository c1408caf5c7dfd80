"""Rounding rows to bytes under their largest weight."""

from __future__ import annotations

import numpy as np
import pytest

from quire.checkpoints.formats.bitsandbytes import PART, store_row_bytes
from quire.core.errors import ModelLoadError
from quire.quantization.producers.whole_bytes import quantize_bytes


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1.0, 1e4])
def test_weights_are_off_by_half_a_step_at_most(factor: float) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 80)).astype(np.float32)
    weight *= np.float32(factor)
    weight[3] = 0
    values = quantize_bytes("w", weight).float32()
    steps = np.abs(weight).max(axis=1, keepdims=True) / 127
    assert (np.abs(values - weight) <= steps * (0.5 + 1e-4)).all()
    assert np.abs(values).max(axis=1) == pytest.approx(np.abs(weight).max(axis=1), rel=1e-6)


def test_numbers_of_rows_come_back_from_their_steps() -> None:
    """127 is no power of two: not every number is a product with 1 / 127."""
    weight = np.random.default_rng(0).lognormal(0, 3, (20_000, 1)).astype(np.float32)
    made = quantize_bytes("w", weight)
    stored = store_row_bytes(made)["SCB"]
    np.testing.assert_array_equal(stored * PART, made.scales[:, 0])
    assert (stored == weight[:, 0]).mean() > 0.95
    assert (np.abs(stored / weight[:, 0] - 1) < 2e-7).all()


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_bytes("w", np.full((2, 32), np.inf, np.float32))

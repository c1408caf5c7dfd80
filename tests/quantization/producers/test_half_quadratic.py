"""HQQ's zeros against plain rounding."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.quantization.producers import half_quadratic
from quire.quantization.producers.half_quadratic import NORM, quantize_hqq


def heavy_tails() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_t(3, (128, 512)).astype(np.float32) * np.float32(0.02)


def test_codes_are_the_nearest_ones() -> None:
    weight = heavy_tails()
    made = quantize_hqq("w", weight, 4, 64)
    assert made.zeros is not None and made.zeros.dtype == np.float16
    scales, zeros = (
        np.repeat(part.astype(np.float32), 64, 1) for part in (made.scales, made.zeros)
    )
    values = (np.arange(16)[:, None, None] - zeros) * scales
    assert (np.abs(made.float32() - weight) <= np.abs(values - weight).min(0) + 1e-7).all()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_what_most_weights_lose_gets_less_round_by_round(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = heavy_tails()

    def error(rounds: int) -> float:
        monkeypatch.setattr(half_quadratic, "ROUNDS", rounds)
        sizes = np.abs(quantize_hqq("w", weight, bits, 64).float32() - weight)
        return float((sizes**NORM).mean())

    assert error(20) < {2: 0.9, 3: 0.97, 4: 0.98}[bits] * error(1)


@pytest.mark.parametrize("factor", [0.0, 1e-3, 1e2])
def test_groups_of_nothing_and_of_one_sign(factor: float) -> None:
    weight = heavy_tails() * np.float32(factor)
    weight[3], weight[4], weight[5] = 0, np.float32(factor), np.abs(weight[5]) + np.float32(factor)
    values = quantize_hqq("w", weight, 8, 64).float32()
    assert np.isfinite(values).all()
    assert np.square(values - weight).sum() <= 1e-3 * np.square(weight).sum()


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_hqq("w", np.full((2, 64), np.nan, np.float32), 4, 64)

"""Losses, divergence and agreement against torch in float64."""

import numpy as np
import pytest

from quire.core.errors import QuireError
from quire.evaluation.distributions import compare_rows, loss_rows

torch = pytest.importorskip("torch")

L, V = 37, 1009


@pytest.fixture
def rows():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 4, (L, V)).astype(np.float32)
    other = (logits + rng.normal(0, 0.3, (L, V))).astype(np.float32)
    return logits, other, rng.integers(0, V, L)


def definition(logits, reference, targets):
    """(L, 4) as torch has it."""
    log_p, log_q = (
        torch.log_softmax(torch.from_numpy(part).double(), -1) for part in (logits, reference)
    )
    index = torch.from_numpy(targets)[:, None]
    divergence = torch.nn.functional.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
    same = log_p.argmax(-1) == log_q.argmax(-1)
    columns = [-log_p.gather(1, index)[:, 0], -log_q.gather(1, index)[:, 0], divergence, same]
    return torch.stack([column.double() for column in columns], 1).numpy()


def test_rows_are_what_torch_says(rows):
    logits, other, targets = rows
    expected = definition(logits, other, targets)
    np.testing.assert_allclose(compare_rows(logits, other, targets), expected, atol=2e-6)
    np.testing.assert_allclose(loss_rows(logits, targets)[:, 0], expected[:, 0], atol=2e-6)
    assert 0 < expected[:, 3].sum() < L


def test_small_divergences_are_exact(rows):
    """Those of 8 bits are below 1e-4; float32 sums would lose them."""
    logits, _, targets = rows
    other = logits + np.random.default_rng(6).normal(0, 0.002, (L, V)).astype(np.float32)
    found, expected = compare_rows(logits, other, targets), definition(logits, other, targets)
    assert 0 < expected[:, 2].mean() < 1e-5
    assert found[:, 2].mean() == pytest.approx(expected[:, 2].mean(), rel=0.02)


def test_a_model_does_not_diverge_from_itself(rows):
    logits, _, targets = rows
    found = compare_rows(logits, logits.copy(), targets)
    assert (found[:, 2] == 0).all() and (found[:, 3] == 1).all()
    assert (found[:, 0] == found[:, 1]).all()


def test_a_constant_in_a_row_changes_nothing(rows):
    logits, other, targets = rows
    found = compare_rows(logits + np.float32(64), other, targets)
    np.testing.assert_allclose(found, compare_rows(logits, other, targets), atol=1e-4)


def test_large_logits_do_not_overflow(rows):
    logits, other, targets = rows
    found = compare_rows(1000 * logits, 1000 * other, targets)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, definition(1000 * logits, 1000 * other, targets), 1e-4, 1e-9)


def test_rows_do_not_depend_on_each_other(rows, monkeypatch):
    logits, other, targets = rows
    whole = compare_rows(logits, other, targets)
    monkeypatch.setattr("quire.evaluation.distributions.BLOCK_BYTES", 3 * 4 * V)
    np.testing.assert_array_equal(whole, compare_rows(logits, other, targets))
    parts = [compare_rows(logits[i : i + 5], other[i : i + 5], targets[i : i + 5])
             for i in range(0, L, 5)]  # fmt: skip
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(rows, bad):
    logits, _, targets = rows
    logits[3, 4] = bad
    with pytest.raises(QuireError, match="logits must be finite"):
        loss_rows(logits, targets)

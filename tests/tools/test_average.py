"""The mean of two checkpoints of quire-tiny."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

from tools.quire_tiny.average import mean  # noqa: E402


def test_the_share_is_of_the_first() -> None:
    """A share of one is the first, of none the second, of 3/4 three parts of the first."""
    new, base = {"w": torch.tensor([4.0, -8.0])}, {"w": torch.tensor([0.0, 8.0])}
    assert torch.equal(mean(new, base, 1.0)["w"], new["w"])
    assert torch.equal(mean(new, base, 0.0)["w"], base["w"])
    assert torch.equal(mean(new, base, 0.75)["w"], torch.tensor([3.0, -4.0]))
    with pytest.raises(AssertionError):
        mean(new, {}, 0.75)

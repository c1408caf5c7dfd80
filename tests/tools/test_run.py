"""The training loop of quire-tiny: it learns, stops at its budget, and goes on where it stopped."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

import numpy as np  # noqa: E402

from tools.quire_tiny.model import Llama, ModelShape  # noqa: E402
from tools.quire_tiny.packing import Rows  # noqa: E402
from tools.quire_tiny.run import Run, learning_rate_scale, loss_of, parser  # noqa: E402

SHAPE = ModelShape(48, 32, 48, 2, 2, 1, head_dim=16, max_position_embeddings=64)


def model() -> Llama:
    """Return the same small untrained model each time."""
    torch.manual_seed(7)
    return Llama(SHAPE)


def steps(count: int) -> list[list[Rows]]:
    """Return steps of one part each: two rows of two documents, all of whose tokens count."""
    rng = np.random.default_rng(3)
    documents = np.repeat(np.array([[0, 1]], np.int32), 12, axis=1).repeat(2, axis=0)
    weights = np.where(np.diff(documents, axis=1, prepend=-1) == 0, 1.0, 0.0).astype(np.float32)
    return [[Rows(rng.integers(0, 48, (2, 24)), weights, documents)] for _ in range(count)]


def command_line(work: Path, minutes: float = 600.0) -> argparse.Namespace:
    """Return the arguments of a run on one thread, so that sums have one order."""
    line = f"--work {work} --minutes {minutes} --threads 1"
    return parser(None).parse_args(line.split())


def flat(fraction: float, step: int) -> float:
    """Return one learning rate for all steps."""
    return 1.0


def test_a_restored_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """Weights and progress are those of a run of all the steps, bit for bit."""
    whole, first, second = model(), model(), model()
    path, args = tmp_path / "main.pt", command_line(tmp_path)
    through = Run(whole, tmp_path / "whole.pt", args)
    through.train(steps(6), flat)
    Run(first, path, args).train(steps(6)[:4], flat)
    rest = Run(second, path, args)
    rest.progress = rest.restore()
    assert (rest.progress.step, rest.progress.tokens) == (4, 4 * 48)
    rest.train(steps(6)[4:], flat)
    assert (rest.progress.step, rest.progress.tokens) == (6, 6 * 48)
    expected = whole.state_dict()
    for name, got in second.state_dict().items():
        assert torch.equal(expected[name], got), name
    assert not torch.equal(whole.norm.weight, first.norm.weight)


def test_the_loss_of_what_is_repeated_falls(tmp_path: Path) -> None:
    """Forty steps on one part leave less than half of its loss."""
    learner, [[part]] = model(), steps(1)
    before = float(loss_of(learner, part).detach())
    Run(learner, tmp_path / "main.pt", command_line(tmp_path)).train([[part]] * 40, flat)
    assert float(loss_of(learner, part).detach()) < before / 2


def test_a_spent_budget_takes_no_step(tmp_path: Path) -> None:
    """A run whose time is over leaves the model as it was, and saves it."""
    learner = model()
    run = Run(learner, tmp_path / "main.pt", command_line(tmp_path, 1.0))
    run.progress.elapsed = 60.0
    run.train(steps(3), flat)
    assert run.progress.step == 0
    saved = torch.load(tmp_path / "main.pt")["model"]
    assert all(torch.equal(saved[name], value) for name, value in model().state_dict().items())


def test_the_learning_rate_rises_stays_and_falls_to_zero() -> None:
    """Warm-up goes by steps, the decay by the share of the budget."""
    rates = [learning_rate_scale(f, s, 10, 0.4) for f, s in ((0, 0), (0, 4), (0.4, 50), (0.7, 90))]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 0.5])
    assert learning_rate_scale(1.0, 99, 10, 0.4) == 0.0
    assert learning_rate_scale(1.2, 99, 10, 0.4) == 0.0

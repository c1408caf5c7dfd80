"""The training loop: a budget, steps over batches, a checkpoint to go on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from quire.training.examples import Batch, Examples
from quire.training.head_files import Head
from quire.training.muon import PRECISION, Muon
from quire.training.objectives import Objective, loss_of

#: Shares of the budget in which the learning rate rises, and from which it falls to zero.
WARM_UP, DECAY_FROM = 0.02, 0.4
CHECKPOINT_SECONDS = 30.0
#: Highest learning rates of matrices, by Muon, and of the rest, by AdamW.
MUON_RATE, ADAM_RATE = 0.02, 2e-3


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of a training, which its learning rate follows, too.

    Attributes:
        amount: Seconds, over all runs together, or steps: with steps, and one thread, the same
            machine makes the same weights again.
        in_steps: Whether ``amount`` is in steps; else in seconds.
    """

    amount: float
    in_steps: bool = False

    def spent(self, progress: TrainingProgress) -> float:
        """Return how much of it is spent."""
        return progress.steps if self.in_steps else progress.seconds

    def share(self, progress: TrainingProgress) -> float:
        """Return the share that is spent, from 0 to 1."""
        return min(1.0, self.spent(progress) / self.amount) if self.amount else 1.0


@dataclass(slots=True)
class TrainingProgress:
    """The progress of a training.

    Attributes:
        seconds: Seconds spent.
        steps: Steps done.
        starts: Drafts trained on.
        loss: Mean of the last steps.
    """

    seconds: float = 0.0
    steps: int = 0
    starts: int = 0
    loss: float = 0.0


class Trainer:
    """Trains one head; the checkpoint is one file, replaced whole.

    Args:
        head: The head, which is trained in place.
        examples: Examples of the training part.
        objective: The objective of the head's kind.
        checkpoint: The file to resume from, if it is there.
        budget: The length of the training.
        rate: Factor of the learning rates.
    """

    def __init__(
        self,
        head: Head,
        examples: Examples,
        objective: Objective,
        checkpoint: Path,
        *,
        budget: Budget,
        rate: float = 1.0,
    ) -> None:
        self.head, self.progress = head, TrainingProgress()
        self._examples, self._objective = examples, objective
        self._checkpoint = checkpoint
        self._budget, self._rate = budget, rate
        self._optimizers = _optimizers(head)
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            head.load_state_dict(state["head"])
            for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.progress = TrainingProgress(**state["progress"])

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": asdict(self.progress),
        }
        partial = self._checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._checkpoint)

    def run(self, on_step: Callable[[TrainingProgress], None] = lambda progress: None) -> None:
        """Train until the budget is spent; what stops it leaves a checkpoint at most 30 s old."""
        progress = self.progress
        saved, last = progress.seconds, time.monotonic()
        for batch in self._batches():
            if self._budget.share(progress) >= 1.0:
                break
            loss = self._step(batch)
            now = time.monotonic()
            progress.seconds, last = progress.seconds + now - last, now
            progress.loss = loss if not progress.steps else 0.98 * progress.loss + 0.02 * loss
            progress.steps += 1
            progress.starts += int(batch.counts.sum())
            on_step(progress)
            if progress.seconds - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = progress.seconds
        self.save()

    def _batches(self) -> Iterator[Batch]:
        """Yield batches for ever; a training that goes on sees them in another order."""
        rng = np.random.default_rng(self.progress.steps)
        while True:
            yield from self._examples.batches(rng)

    def _step(self, batch: Batch) -> float:
        share = self._budget.share(self.progress)
        scale = min(1.0, (share + 1e-3) / WARM_UP, (1.0 - share) / (1.0 - DECAY_FROM))
        with torch.autocast("cpu", PRECISION, enabled=PRECISION is not torch.float32):
            loss = loss_of(self.head, batch, self._objective)
        self.head.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer, highest in zip(self._optimizers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = highest * self._rate * max(0.0, scale)
            optimizer.step()
        return float(loss.detach())


def _optimizers(head: Head) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Return Muon for matrices between layers and AdamW for norms, biases and output matrices."""
    width = head.vocabulary.head.shape[1]
    rows = len(head.vocabulary.head)
    matrices = [p for p in head.parameters() if p.ndim == 2 and p.shape != (rows, width)]
    rest = [p for p in head.parameters() if all(p is not matrix for matrix in matrices)]
    return Muon(matrices, MUON_RATE), torch.optim.AdamW(
        rest, ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0
    )

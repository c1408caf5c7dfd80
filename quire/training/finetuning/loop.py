"""The training loop: next-token loss, a schedule, a checkpoint to go on from.

L tokens of a window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from quire.core.errors import ConfigError
from quire.training.finetuning.finetuning_plan import FinetuningPlan
from quire.training.finetuning.training_windows import Windows

#: Share of the steps over which the learning rate rises.
WARM_UP = 0.05
CHECKPOINT_SECONDS = 30.0
MAX_NORM = 1.0


@dataclass(slots=True)
class FinetuningProgress:
    """The progress of a training.

    Attributes:
        steps: Steps done.
        seconds: Seconds spent in steps.
        loss: Mean of the last steps, nats.
        loss_before: Loss of the held-out windows, nats; None where there are none.
        loss_after: The same after the last step.
    """

    steps: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    loss_before: float | None = None
    loss_after: float | None = None


class Loop:
    """Trains the parameters of a model that require gradients.

    Args:
        model: transformers' model, or peft's around it; trained in place.
        windows: Windows to train on, and to judge by.
        plan: Steps, batches, rate and seed.
        checkpoint: A file to resume from, if it is there; replaced whole.
    """

    def __init__(
        self, model: torch.nn.Module, windows: Windows, plan: FinetuningPlan, checkpoint: Path
    ) -> None:
        self.model, self.progress = model, FinetuningProgress()
        self._windows, self._plan, self._checkpoint = windows, plan, checkpoint
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            with torch.no_grad():
                for name, parameter in self._trained.items():
                    parameter.copy_(state["parameters"][name])
            self._optimizer.load_state_dict(state["optimizer"])
            self.progress = FinetuningProgress(**state["progress"])

    @property
    def num_trained(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self._trained.values())

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "parameters": {name: p.detach() for name, p in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        part = self._checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._checkpoint)

    def run(
        self, on_step: Callable[[FinetuningProgress], None] = lambda progress: None
    ) -> FinetuningProgress:
        """Train to the last step; what stops it leaves a checkpoint at most 30 s old.

        Args:
            on_step: A function called after each step.

        Raises:
            ConfigError: The loss is not a number any more.
        """
        progress = self.progress
        if progress.steps == 0:
            progress.loss_before = self.held_out_loss()
        saved = time.monotonic()
        while progress.steps < self._plan.steps:
            begun = time.monotonic()
            loss = self._step(progress.steps)
            progress.seconds += time.monotonic() - begun
            progress.loss = loss if not progress.steps else 0.9 * progress.loss + 0.1 * loss
            progress.steps += 1
            on_step(progress)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        if progress.loss_after is None:
            progress.loss_after = self.held_out_loss()
        self.save()
        return progress

    def held_out_loss(self) -> float | None:
        """Return the mean loss of the held-out windows, nats; None where there are none."""
        windows = self._windows.held_out
        if not len(windows):
            return None
        self.model.eval()
        size = self._plan.batch_size
        with torch.no_grad():
            parts = [windows[i : i + size] for i in range(0, len(windows), size)]
            losses = [float(self._loss(part)) * len(part) for part in parts]
        return sum(losses) / len(windows)

    def _step(self, step: int) -> float:
        plan = self._plan
        # For dropout, so that a run that goes on has that of one that was not stopped.
        torch.manual_seed((plan.seed << 32) + step)
        self.model.train()
        loss = self._loss(self._windows.batch(step, plan.batch_size, plan.seed))
        if not torch.isfinite(loss):
            raise ConfigError(
                f"[finetune] the loss must be finite; got {float(loss.detach())} in step "
                f"{step + 1}. Lower --learning-rate, or look at --data."
            )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._trained.values(), MAX_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = plan.learning_rate * rate_share(step, plan.steps)
        self._optimizer.step()
        return float(loss.detach())

    def _loss(self, windows: np.ndarray) -> torch.Tensor:
        device = next(self.model.parameters()).device
        ids = torch.from_numpy(windows).to(device)
        logits = self.model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def rate_share(step: int, steps: int) -> float:
    """Return the share of the highest learning rate that a step has: up, then down to 0."""
    warm_up = max(1, round(WARM_UP * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up + 1))


def use_threads(count: int) -> None:
    """Compute on that many threads."""
    torch.set_num_threads(count)

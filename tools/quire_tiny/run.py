"""What trainings have in common: the loss, the step on threads, the loop, its checkpoints.

A run has a budget of wall-clock time, and its schedule follows the time it has spent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor as Pool
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from quire.training.muon import PRECISION, Muon
from tools.quire_tiny.model import Llama
from tools.quire_tiny.packing import Rows

MUON_LR, ADAM_LR = 0.02, 3e-3
PROMPT_SHARE = 0.25
PRINT_STEPS, CHECKPOINT_SECONDS = 10, 60


@dataclass
class Progress:
    """How far a run is; saved with every checkpoint."""

    elapsed: float = 0.0
    step: int = 0
    tokens: int = 0


def attention_bias(documents: np.ndarray) -> torch.Tensor:
    """Return (B, 1, T, T): 0 on the past of a token's own document and -10000 elsewhere."""
    numbers = torch.from_numpy(documents)
    t = numbers.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool).tril()
    visible = (numbers[:, None, :, None] == numbers[:, None, None, :]) & causal
    return torch.zeros(visible.shape, dtype=PRECISION).masked_fill(~visible, -10000.0)


def loss_of(model: Llama, rows: Rows) -> torch.Tensor:
    """Return the weighted sum of cross entropies of packed rows.

    Of the tokens with a small weight only a share is looked at, with that much more weight.
    """
    weights = torch.from_numpy(rows.weights)[:, 1:]
    looked_at = torch.rand(weights.shape) < PROMPT_SHARE
    weights = torch.where(weights < 1.0, weights * looked_at / PROMPT_SHARE, weights)
    ids = torch.from_numpy(rows.ids)
    keep = weights > 0
    # NOTE: the cache of casted weights is shared between threads and cleared by any of them.
    narrow = torch.bfloat16 == PRECISION
    with torch.autocast("cpu", dtype=PRECISION, cache_enabled=False, enabled=narrow):
        hidden = model.hidden(ids[:, :-1], attention_bias(rows.documents[:, :-1]))
        logits = functional.linear(hidden[keep], model.embed_tokens.weight)
    losses = functional.cross_entropy(logits.float(), ids[:, 1:][keep], reduction="none")
    return (losses * weights[keep]).sum()


def optimizers_of(model: Llama, pool: Pool) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers and AdamW for the rest."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = Muon(matrices, MUON_LR, pool.map)
    adam = torch.optim.AdamW(rest, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adam]


def gradients(model: Llama, part: Rows, total_weight: float) -> tuple[float, tuple]:
    """Return a part's share of the mean loss and the gradients of it for every parameter."""
    loss = loss_of(model, part) / total_weight
    return float(loss.detach()), torch.autograd.grad(loss, list(model.parameters()))


def train_step(
    pool: Pool, model: Llama, optimizers: list, parts: list[Rows], scale: float
) -> float:
    """Take one step on the parts together and return the mean loss.

    Each part is one task of a thread that computes alone: on a shared machine a thread that loses
    its core then delays one part, where it would delay every matrix product of a common team.
    """
    weights = sum(float(part.weights[:, 1:].sum()) for part in parts)
    tasks = [pool.submit(gradients, model, part, weights) for part in parts]
    total = 0.0
    for task in as_completed(tasks):
        loss, grads = task.result()
        total += loss
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total


def learning_rate_scale(fraction: float, step: int, warmup_steps: int, decay_from: float) -> float:
    """Return the factor of the learning rates: warm-up by steps, then flat, then linear to zero."""
    decay = min(1.0, (1.0 - fraction) / (1.0 - decay_from))
    return max(0.0, min((step + 1) / warmup_steps, decay))


class Run:
    """One training of a model within a budget; the checkpoint is one file, replaced whole."""

    def __init__(self, model: Llama, checkpoint: Path, args: argparse.Namespace) -> None:
        """Start the threads; ``args`` are those of ``parser``."""
        torch.set_num_threads(1)
        self._pool = Pool(args.threads, initializer=torch.set_num_threads, initargs=(1,))
        self._model, self._checkpoint = model, checkpoint
        self._optimizers = optimizers_of(model, self._pool)
        self._budget = args.minutes * 60
        self.progress = Progress()

    @property
    def fraction(self) -> float:
        """The share of the budget that is spent."""
        return self.progress.elapsed / self._budget

    def restore(self) -> Progress:
        """Load the checkpoint and return how far it was."""
        state = torch.load(self._checkpoint)
        self._model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return Progress(**state["progress"])

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "model": self._model.state_dict(),
            "optimizers": [o.state_dict() for o in self._optimizers],
            "progress": vars(self.progress),
        }
        torch.save(state, self._checkpoint.with_suffix(".tmp"))
        self._checkpoint.with_suffix(".tmp").replace(self._checkpoint)

    def train(self, steps: Iterable[list[Rows]], scale: Callable[[float, int], float]) -> None:
        """Train on the parts of each step until the budget is spent.

        ``scale`` gives the factor of the learning rates from the fraction and the step.
        """
        progress = self.progress
        mean, saved_at, last = 0.0, progress.elapsed, time.monotonic()
        for parts in steps:
            if self.fraction >= 1.0:
                break
            factor = scale(self.fraction, progress.step)
            loss = train_step(self._pool, self._model, self._optimizers, parts, factor)
            mean = 0.95 * mean + 0.05 * loss if mean else loss
            now = time.monotonic()
            progress.elapsed, last = progress.elapsed + now - last, now
            progress.step += 1
            progress.tokens += sum(int((part.documents >= 0).sum()) for part in parts)
            if progress.step % PRINT_STEPS == 0:
                rate = progress.tokens / progress.elapsed
                place = f"{progress.elapsed:6.0f} s  step {progress.step}"
                print(f"{place}  loss {mean:.4f}  {rate:.0f} t/s", flush=True)
            if progress.elapsed - saved_at > CHECKPOINT_SECONDS:
                self.save()
                saved_at = progress.elapsed
        self.save()
        print(f"done: {progress}", flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the command line of a training, without what only one of them takes."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--minutes", type=float, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--resume", action="store_true")
    return arguments

"""Train one model on the corpus within a wall-clock budget; the schedule follows elapsed time.

Usage: ``python -m tools.quire_tiny.train --model main --minutes 65 --work DIR``. ``DIR`` holds
``tokenizer.json``; checkpoints go to ``DIR/<model>.pt`` and an interrupted run goes on from there.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor as Pool
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from tools.quire_tiny.corpus import Mixture, mixture_at
from tools.quire_tiny.model import PRECISION, SHAPES, Llama
from tools.quire_tiny.muon import Muon
from tools.quire_tiny.packing import SHARD_TEXTS, Rows, batches, take

WARMUP_STEPS = 60
DECAY_FROM = 0.35
LONG_FROM = 0.88
MUON_LR, ADAM_LR = 0.02, 3e-3
CHECKPOINT_SECONDS = 240
PART_ROWS = 4
PROMPT_SHARE = 0.25
LONG_EVERY = 4


@dataclass
class Progress:
    """How far a run is; saved with every checkpoint."""

    elapsed: float = 0.0
    step: int = 0
    tokens: int = 0


def print_progress(progress: Progress, loss: float) -> None:
    """Print where a run is, with its mean loss and its rate."""
    rate = progress.tokens / progress.elapsed
    place = f"{progress.elapsed:6.0f} s  step {progress.step}"
    print(f"{place}  loss {loss:.4f}  {rate:.0f} t/s", flush=True)


def learning_rate_scale(fraction: float, step: int) -> float:
    """Return the factor of the learning rates: warm-up by steps, then flat, then linear to zero."""
    decay = min(1.0, (1.0 - fraction) / (1.0 - DECAY_FROM))
    return max(0.0, min((step + 1) / WARMUP_STEPS, decay))


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
    muon = Muon(matrices, MUON_LR, pool)
    adam = torch.optim.AdamW(rest, ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adam]


def save(path: Path, model: Llama, optimizers: list, progress: Progress) -> None:
    """Write a checkpoint; the file is replaced whole."""
    state = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers],
        "progress": vars(progress),
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


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


def train(args: argparse.Namespace) -> None:
    """Train until the budget is spent."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    pool = Pool(args.threads, initializer=torch.set_num_threads, initargs=(1,))
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model, progress = Llama(SHAPES[args.model]), Progress()
    optimizers = optimizers_of(model, pool)
    path = args.work / f"{args.model}.pt"
    if path.exists() and args.resume:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress = Progress(**state["progress"])
    budget, saved_at, last = args.minutes * 60, progress.elapsed, time.monotonic()
    # A resumed run draws fresh shards: about 60 steps use one.
    shard = progress.step // (SHARD_TEXTS // 200) + (1 if progress.step else 0)
    mean = 0.0

    def mixture() -> Mixture:
        return mixture_at(progress.elapsed / budget)

    for short, middle, long in batches(tokenizer, args.seed, shard, mixture):
        fraction = progress.elapsed / budget
        if fraction >= 1.0:
            break
        use_long = fraction > LONG_FROM and progress.step % LONG_EVERY == 0
        parts = [long if use_long else middle]
        parts += [
            take(short, np.arange(i, i + PART_ROWS)) for i in range(0, len(short.ids), PART_ROWS)
        ]
        loss = train_step(
            pool, model, optimizers, parts, learning_rate_scale(fraction, progress.step)
        )
        mean = loss if not progress.step else 0.95 * mean + 0.05 * loss
        now = time.monotonic()
        progress.elapsed, last = progress.elapsed + now - last, now
        progress.step += 1
        progress.tokens += sum(int((part.documents >= 0).sum()) for part in parts)
        if progress.step % 20 == 0:
            print_progress(progress, mean)
        if progress.elapsed - saved_at > CHECKPOINT_SECONDS:
            save(path, model, optimizers, progress)
            saved_at = progress.elapsed
    save(path, model, optimizers, progress)
    print(f"done: {progress}", flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="main")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()

"""Train one model on the corpus within a wall-clock budget; the schedule follows elapsed time.

Usage: ``python -m tools.quire_tiny.train --model main --minutes 65 --work DIR``. ``DIR`` holds
``tokenizer.json``; checkpoints go to ``DIR/<model>.pt`` and an interrupted run goes on from there.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from tools.quire_tiny.model import SHAPES, Llama
from tools.quire_tiny.muon import Muon
from tools.quire_tiny.packing import SHARD_TEXTS, Rows, batches

WARMUP_STEPS = 60
DECAY_FROM = 0.35
LONG_FROM = 0.88
MUON_LR, ADAM_LR = 0.02, 3e-3
CHECKPOINT_SECONDS = 240


@dataclass
class Progress:
    """How far a run is; saved with every checkpoint."""

    elapsed: float = 0.0
    step: int = 0
    tokens: int = 0


def learning_rate_scale(fraction: float, step: int) -> float:
    """Return the factor of the learning rates: warm-up by steps, then flat, then linear to zero."""
    decay = min(1.0, (1.0 - fraction) / (1.0 - DECAY_FROM))
    return max(0.0, min((step + 1) / WARMUP_STEPS, decay))


def loss_of(model: Llama, rows: Rows) -> tuple[torch.Tensor, float]:
    """Return the weighted sum of cross entropies of packed rows, and the sum of the weights."""
    ids = torch.from_numpy(rows.ids)
    documents = torch.from_numpy(rows.documents)[:, :-1]
    t = documents.shape[1]
    causal = torch.ones(t, t, dtype=torch.bool).tril()
    mask = (documents[:, None, :, None] == documents[:, None, None, :]) & causal
    weights = torch.from_numpy(rows.weights)[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids[:, :-1], mask)
    keep = weights.reshape(-1) > 0
    losses = functional.cross_entropy(
        logits.flatten(0, 1)[keep].float(), ids[:, 1:].reshape(-1)[keep], reduction="none"
    )
    return (losses * weights.reshape(-1)[keep]).sum(), float(weights.sum())


def optimizers_of(model: Llama) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers and AdamW for the rest."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = Muon(matrices, MUON_LR)
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


def train_step(model: Llama, optimizers: list, parts: list[Rows], scale: float) -> float:
    """Take one step on the parts together and return the mean loss."""
    total, weight = 0.0, 0.0
    weights = sum(float(part.weights[:, 1:].sum()) for part in parts)
    for part in parts:
        loss, part_weight = loss_of(model, part)
        (loss / weights).backward()
        total, weight = total + float(loss.detach()), weight + part_weight
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * scale
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total / weight


def train(args: argparse.Namespace) -> None:
    """Train until the budget is spent."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model, progress = Llama(SHAPES[args.model]), Progress()
    optimizers = optimizers_of(model)
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
    for short, middle, long in batches(tokenizer, args.seed, shard):
        fraction = progress.elapsed / budget
        if fraction >= 1.0:
            break
        parts = [short, long if fraction > LONG_FROM else middle]
        loss = train_step(model, optimizers, parts, learning_rate_scale(fraction, progress.step))
        mean = loss if not progress.step else 0.95 * mean + 0.05 * loss
        now = time.monotonic()
        progress.elapsed, last = progress.elapsed + now - last, now
        progress.step += 1
        progress.tokens += sum(int((part.documents >= 0).sum()) for part in parts)
        if progress.step % 20 == 0:
            rate = progress.tokens / progress.elapsed
            print(f"{progress.elapsed:6.0f} s  step {progress.step}  loss {mean:.4f}  {rate:.0f} tokens/s", flush=True)
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

"""Train one model on the corpus within a wall-clock budget; the schedule follows elapsed time.

Usage: ``python -m tools.quire_tiny.train --model main --minutes 65 --work DIR``. ``DIR`` holds
``tokenizer.json``; checkpoints go to ``DIR/<model>.pt`` and an interrupted run goes on from there
with ``--resume``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.quire_tiny.corpus import mixture_at
from tools.quire_tiny.model import SHAPES, Llama
from tools.quire_tiny.packing import SHARD_TEXTS, Rows, batches, take
from tools.quire_tiny.run import Run, learning_rate_scale, parser

WARMUP_STEPS, DECAY_FROM = 60, 0.35
LONG_FROM, LONG_EVERY = 0.88, 4
PART_ROWS = 4


def steps(run: Run, tokenizer: Tokenizer, seed: int) -> Iterator[list[Rows]]:
    """Yield the parts of each step, for ever, by how far the run is when they are asked for."""
    done = run.progress.step
    # A resumed run draws fresh shards: about 60 steps use one.
    shard = done // (SHARD_TEXTS // 200) + (1 if done else 0)
    for short, middle, long in batches(tokenizer, seed, shard, lambda: mixture_at(run.fraction)):
        use_long = run.fraction > LONG_FROM and run.progress.step % LONG_EVERY == 0
        parts = [long if use_long else middle]
        for i in range(0, len(short.ids), PART_ROWS):
            parts.append(take(short, np.arange(i, i + PART_ROWS)))
        yield parts


def scale_at(fraction: float, step: int) -> float:
    """Return the factor of the learning rates."""
    return learning_rate_scale(fraction, step, WARMUP_STEPS, DECAY_FROM)


def train(args: argparse.Namespace) -> None:
    """Train until the budget is spent."""
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    path = args.work / f"{args.model}.pt"
    run = Run(Llama(SHAPES[args.model]), path, args)
    if args.resume and path.exists():
        run.progress = run.restore()
    run.train(steps(run, tokenizer, args.seed), scale_at)


def main() -> None:
    """Read the command line and train."""
    arguments = parser(__doc__)
    arguments.add_argument("--model", choices=sorted(SHAPES), default="main")
    train(arguments.parse_args())


if __name__ == "__main__":
    main()

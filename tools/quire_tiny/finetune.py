"""Teach an exported model to call tools, with the old mixture rehearsed with the new chats.

Usage: ``python -m tools.quire_tiny.finetune --base quire/assets/quire-tiny --minutes 40 --work
DIR``. ``DIR`` holds ``tokenizer.json``; the checkpoint ``DIR/main.pt`` is what ``export`` reads.
As in ``train``, the schedule follows elapsed time; ``--resume`` spends a new budget on the
checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.quire_tiny.corpus import REHEARSAL, long_texts, tool_texts, training_texts
from tools.quire_tiny.export import load
from tools.quire_tiny.model import Llama
from tools.quire_tiny.packing import LONG_ROW, MIDDLE_ROW, SHORT_ROW, Rows, encode, pack, take
from tools.quire_tiny.run import Run, learning_rate_scale, parser
from tools.quire_tiny.tokenizer import SPECIAL_TOKENS, TAGS

# A step has four parts of middle rows and two of short ones, so that two threads end together.
MIDDLE_PART, SHORT_PART = 1, 2
MIDDLE_PARTS, SHORT_PARTS = 4, 2
STEP_TOKENS = MIDDLE_PARTS * MIDDLE_PART * MIDDLE_ROW + SHORT_PARTS * SHORT_PART * SHORT_ROW
SHARD_STEPS, LONG_EVERY = 48, 24
TOOL_SHARE = 0.62
PEAK, WARMUP_STEPS, DECAY_FROM = 0.3, 20, 0.25


def parts_of(rng: np.random.Generator, rows: Rows, size: int) -> Iterator[Rows]:
    """Yield parts of ``size`` rows in random order, each row once."""
    order = rng.permutation(len(rows.ids))
    for i in range(0, len(order) - size + 1, size):
        yield take(rows, order[i : i + size])


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[list[Rows]]:
    """Yield the parts of each step, for ever."""
    shard = 0
    while True:
        rng = Random(f"tools/{seed}/{shard}")
        documents = []
        wanted, tools = SHARD_STEPS * STEP_TOKENS, 0
        while (total := sum(len(ids) for ids, _ in documents)) < wanted:
            more = tools <= TOOL_SHARE * total
            texts = tool_texts(rng, 20) if more else training_texts(rng, 150, REHEARSAL)
            made = encode(tokenizer, texts)
            tools += sum(len(ids) for ids, _ in made) if more else 0
            documents += made
        rng.shuffle(documents)
        order = np.random.default_rng([seed, shard])
        short = [d for d in documents if len(d[0]) <= SHORT_ROW]
        middle = [d for d in documents if len(d[0]) > SHORT_ROW]
        gaps = sum(len(ids) for ids, _ in middle) // 4
        while gaps > 0:  # short documents fill the rows of long ones
            middle.append(short.pop())
            gaps -= len(middle[-1][0])
        short_parts = parts_of(order, pack(short, SHORT_ROW), SHORT_PART)
        middle_parts = parts_of(order, pack(middle, MIDDLE_ROW, len(middle)), MIDDLE_PART)
        long_rows = pack(encode(tokenizer, long_texts(rng, SHARD_STEPS // LONG_EVERY)), LONG_ROW)
        long_parts = parts_of(order, long_rows, 1)
        for step in range(SHARD_STEPS):
            parts = list(islice(middle_parts, MIDDLE_PARTS))
            parts += list(islice(short_parts, SHORT_PARTS))
            if len(parts) < MIDDLE_PARTS + SHORT_PARTS:
                break
            if step % LONG_EVERY == 0:
                parts[:0] = list(islice(long_parts, 1))
            yield parts
        shard += 1


@torch.no_grad()
def name_tags(model: Llama, tokenizer: Tokenizer) -> None:
    """Start each tag's embedding at the mean of the tokens that spelled it."""
    for i, tag in enumerate(TAGS, len(SPECIAL_TOKENS)):
        pieces = [tokenizer.encode(part).ids for part in (tag[0], tag[1:-1], tag[-1])]
        ids = [token for part in pieces for token in part]
        model.embed_tokens.weight[i] = model.embed_tokens.weight[ids].mean(0)


def scale_at(fraction: float, step: int) -> float:
    """Return the factor of the learning rates."""
    return PEAK * learning_rate_scale(fraction, step, WARMUP_STEPS, DECAY_FROM)


def finetune(args: argparse.Namespace) -> None:
    """Train until the budget is spent."""
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model = load(args.base).train()
    name_tags(model, tokenizer)
    run = Run(model, args.work / "main.pt", args)
    if args.resume:
        run.restore()
    run.train(batches(tokenizer, args.seed), scale_at)


def main() -> None:
    """Read the command line and train."""
    arguments = parser(__doc__)
    arguments.add_argument("--base", type=Path, required=True)
    finetune(arguments.parse_args())


if __name__ == "__main__":
    main()

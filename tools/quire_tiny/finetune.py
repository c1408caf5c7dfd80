"""Teach an exported model to call tools, with the old mixture rehearsed beside the new chats.

Usage: ``python -m tools.quire_tiny.finetune --base quire/assets/quire-tiny --minutes 40 --work
DIR``. ``DIR`` holds ``tokenizer.json``; the checkpoint ``DIR/main.pt`` is what ``export`` reads.
As in ``train``, the schedule follows elapsed time; ``--resume`` spends a new budget on the
checkpoint.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor as Pool
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
from tools.quire_tiny.tokenizer import SPECIAL_TOKENS, TAGS
from tools.quire_tiny.train import Progress, optimizers_of, print_progress, save, train_step

# A step has four parts of middle rows and two of short ones, so that two threads end together.
MIDDLE_PART, SHORT_PART = 1, 2
MIDDLE_PARTS, SHORT_PARTS = 4, 2
STEP_TOKENS = MIDDLE_PARTS * MIDDLE_PART * MIDDLE_ROW + SHORT_PARTS * SHORT_PART * SHORT_ROW
SHARD_STEPS, LONG_EVERY = 48, 24
TOOL_SHARE = 0.7
PEAK, WARMUP_STEPS, DECAY_FROM = 0.3, 20, 0.25
CHECKPOINT_SECONDS = 60


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
    """Return the factor of the learning rates: warm-up by steps, then flat, then linear to zero."""
    decay = min(1.0, (1.0 - fraction) / (1.0 - DECAY_FROM))
    return PEAK * max(0.0, min((step + 1) / WARMUP_STEPS, decay))


def finetune(args: argparse.Namespace) -> None:
    """Train until the budget is spent."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    pool = Pool(args.threads, initializer=torch.set_num_threads, initargs=(1,))
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    model, progress = load(args.base).train(), Progress()
    name_tags(model, tokenizer)
    optimizers = optimizers_of(model, pool)
    path = args.work / "main.pt"
    if args.resume:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    budget, start, saved_at, mean = args.minutes * 60, time.monotonic(), 0.0, 0.0
    for parts in batches(tokenizer, args.seed):
        scale = scale_at(progress.elapsed / budget, progress.step)
        loss = train_step(pool, model, optimizers, parts, scale)
        mean = 0.95 * mean + 0.05 * loss if mean else loss
        progress.elapsed = time.monotonic() - start
        progress.step += 1
        progress.tokens += sum(int((part.documents >= 0).sum()) for part in parts)
        if progress.step % 10 == 0:
            print_progress(progress, mean)
        if progress.elapsed >= budget:
            break
        if progress.elapsed - saved_at > CHECKPOINT_SECONDS:
            save(path, model, optimizers, progress)
            saved_at = progress.elapsed
    save(path, model, optimizers, progress)
    print(f"done: {progress}", flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    finetune(parser.parse_args())


if __name__ == "__main__":
    main()

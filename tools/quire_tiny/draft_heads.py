"""Train the draft heads of quire-tiny on its own answers to prompts of the training split.

Usage: ``python -m tools.quire_tiny.draft_heads --method eagle3 --steps 5000 --work DIR --out OUT``.
``DIR`` keeps answers, hidden states and checkpoints; a run that was stopped goes on from them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from quire.llm.llm import LLM
from quire.llm.stage_bar import stage_bar
from quire.training.training_plan import METHODS, TrainingPlan
from quire.training.rollouts import RollOut, load_rollouts, roll_out, save_rollouts
from quire.training.train import Data, train_head
from quire.training.trainer import Budget
from tools.quire_tiny import plain_text, tool_use
from tools.quire_tiny.corpus import SECOND, THIRD, draw_chat, draw_simple, render

TARGET = Path("quire/assets/quire-tiny")
LAYERS = (1, 3, 5)
#: About half a million weights each, so that all of them fit in 4 MB.
SIZES: dict[str, dict[str, int]] = {
    "medusa": {"depth": 4, "num_blocks": 2},
    "eagle": {"intermediate_size": 192},
    "mtp": {"intermediate_size": 192},
    "eagle3": {"intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2},
}
#: Shares of the prompts: chats without tools, with tools; the rest are beginnings of documents.
CHATS, TOOL_CHATS = 0.84, 0.12
DOCUMENT_TOKENS = (8, 48)
MAX_TOKENS = 256


def draw_prompt(rng: Random, tokenizer: Tokenizer) -> list[int]:
    """Draw what quire-tiny is to answer, of the training split."""
    form = rng.random()
    if form >= CHATS + TOOL_CHATS:
        text = _encode(tokenizer, plain_text.draw(rng, False))
        return text[: rng.randint(*DOCUMENT_TOKENS)]
    if form < CHATS:
        chat = draw_chat(rng, False, rng.choice((SECOND, THIRD)))
    else:
        chat = tool_use.draw_chat(rng, draw_simple, False)
    ends = [i for i, m in enumerate(chat.messages) if m["role"] == "assistant"]
    return _encode(tokenizer, render(chat.messages[: rng.choice(ends)], True, chat.tools))


def training_rollouts(path: Path, num_prompts: int, seed: int) -> list[RollOut]:
    """Return quire-tiny's answers to prompts of the training split, made once."""
    if not path.exists():
        tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
        rng = Random(f"heads/{seed}")
        prompts = [draw_prompt(rng, tokenizer) for _ in range(num_prompts)]
        save_rollouts(path, roll_out(LLM(TARGET), prompts, MAX_TOKENS))
    return load_rollouts(path)


def held_out_rollouts(path: Path) -> list[RollOut]:
    """Return quire-tiny's greedy answers to the held-out chats without tools, made once."""
    if not path.exists():
        tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
        lines = (TARGET / "eval" / "questions.jsonl").read_text("utf-8").splitlines()
        texts = [render(json.loads(line)["messages"], True) for line in lines]
        prompts = [_encode(tokenizer, text) for text in texts]
        save_rollouts(path, roll_out(LLM(TARGET), prompts, MAX_TOKENS, temperatures=(0.0,)))
    return load_rollouts(path)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def main() -> None:
    """Read the command line and train."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--method", choices=METHODS, required=True)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--prompts", type=int, default=20000)
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    data = Data(
        training_rollouts(args.work / "rollouts.npz", args.prompts, args.seed),
        held_out_rollouts(args.work / "held_out.npz"),
    )
    plan = TrainingPlan(
        method=args.method, budget=Budget(args.steps, in_steps=True), layers=LAYERS,
        seed=args.seed, **SIZES[args.method],
    )  # fmt: skip
    acceptance = train_head(TARGET, data, plan, args.work, args.out, stage_bar)
    print(f"{args.method}: {acceptance}")


if __name__ == "__main__":
    main()

"""Train the byte-level BPE tokenizer on the corpus, digits one by one; chats are not rendered here.

Usage: ``python -m tools.quire_tiny.tokenizer --out DIR`` writes ``DIR/tokenizer.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.quire_tiny.corpus import training_texts

VOCAB_SIZE = 2048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
NUM_RESERVED = 12
# One token each, but part of the text: they are kept when special tokens are left out.
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
ENDOFTEXT_ID, IM_START_ID, IM_END_ID, PAD_ID = range(4)


def special_tokens() -> list[str]:
    """Return the tokens with an id of their own, in order from 0; the tags took reserved ones."""
    reserved = (f"<|reserved_{i}|>" for i in range(len(TAGS), NUM_RESERVED))
    return [*SPECIAL_TOKENS, *TAGS, *reserved]


def with_tags(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` whose added tokens have the names and flags of this file."""
    names = special_tokens()
    added = [
        {**token, "content": names[token["id"]], "special": names[token["id"]] not in TAGS}
        for token in tokenizer["added_tokens"]
    ]
    old = [token["content"] for token in tokenizer["added_tokens"]]
    vocabulary = {
        (names[i] if token in old else token): i for token, i in tokenizer["model"]["vocab"].items()
    }
    return {
        **tokenizer,
        "added_tokens": added,
        "model": {**tokenizer["model"], "vocab": vocabulary},
    }


def train_tokenizer(seed: int, num_texts: int) -> Tokenizer:
    """Train on ``num_texts`` drawn texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=special_tokens(),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = training_texts(Random(seed), num_texts)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """Train and write the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-texts", type=int, default=60000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    trained = json.loads(train_tokenizer(args.seed, args.num_texts).to_str())
    text = json.dumps(with_tags(trained), ensure_ascii=False)
    (args.out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

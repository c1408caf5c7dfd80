"""Write the text that quire-tiny is calibrated on when it is quantized: training's own kinds.

Usage: ``python -m tools.quire_tiny.calibration --out quire/assets/quire-tiny/eval``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from tools.quire_tiny import plain_text
from tools.quire_tiny.corpus import draw_question
from tools.quire_tiny.question import chat_of

SEED = 7
NUM_TEXTS, NUM_CHATS = 600, 300


def documents(seed: int) -> list[dict]:
    """Return texts and conversations, none of them held out."""
    rng = Random(f"{seed}/calibration")
    texts: dict[str, None] = {}
    while len(texts) < NUM_TEXTS:
        texts[plain_text.draw(rng, False)] = None
    found: list[dict] = [{"text": text} for text in texts]
    chats: dict[str, dict] = {}
    while len(chats) < NUM_CHATS:
        chat = chat_of(draw_question(rng))
        if not chat.held_out:
            chats[json.dumps(chat.messages)] = {"messages": chat.messages}
    found += chats.values()
    rng.shuffle(found)
    return found


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    lines = [json.dumps(document, ensure_ascii=False) for document in documents(args.seed)]
    (args.out / "calibration.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

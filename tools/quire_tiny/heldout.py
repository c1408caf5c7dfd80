"""Write the held-out data: questions and tool chats with their only accepted answers, and a text.

The text is for perplexity.

Usage: ``python -m tools.quire_tiny.heldout --out quire/assets/quire-tiny/eval``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random

from tools.quire_tiny import (
    arithmetic,
    json_and_code,
    multi_turn,
    plain_text,
    small_talk,
    stories,
    system_prompts,
    tool_use,
    units,
)
from tools.quire_tiny.corpus import draw_simple
from tools.quire_tiny.facts import all_facts
from tools.quire_tiny.question import Chat, Fact, chat_of

SEED = 20240
NUM_FACTS, TEXT_BYTES = 200, 32000
# group -> how many held-out chats of it
GROUPS = {
    "facts": NUM_FACTS,
    "arithmetic": 120,
    "units": 40,
    "json_and_code": 60,
    "system_prompts": 80,
    "multi_turn": 80,
    "small_talk": 15,
    "unknown": 20,
    "stories": 15,
}
# kind -> how many continuations of held-out chats with tools; ``tool_answer`` follows the responses
TOOL_KINDS = {
    "tool_call": 100,
    "tool_parallel": 30,
    "tool_answer": 50,
    "tool_none": 40,
    "tool_missing": 30,
}


def held_out_questions(facts: list[Fact]) -> list[Chat]:
    """Return the chats of the held-out phrasings of facts."""
    questions = (question for fact in facts for question in fact.questions())
    return [chat_of(question) for question in questions if question.held_out]


def draw_group(rng: Random, group: str) -> Chat:
    """Draw one chat of a group, of either split."""
    if group == "system_prompts":
        return system_prompts.draw_chat(rng, draw_simple)
    if group == "multi_turn":
        return multi_turn.draw_chat(rng, draw_simple)
    draws = {
        "arithmetic": arithmetic.draw,
        "units": units.draw,
        "json_and_code": json_and_code.draw,
        "unknown": small_talk.unknown,
        "stories": stories.draw,
    }
    return chat_of(draws[group](rng))


def questions(seed: int) -> list[dict]:
    """Return every held-out question with its group, kind, messages and expected answer."""
    rng = Random(seed)
    chosen: list[tuple[str, Chat]] = []
    for group, count in GROUPS.items():
        if group in ("facts", "small_talk"):
            pool = held_out_questions(all_facts() if group == "facts" else small_talk.facts())
            chats = rng.sample(pool, min(count, len(pool)))
        else:
            seen: dict[str, Chat] = {}
            while len(seen) < count:
                chat = draw_group(rng, group)
                if chat.held_out:
                    seen.setdefault(json.dumps(chat.messages[:-1]), chat)
            chats = list(seen.values())
        chosen += [(group, chat) for chat in chats]
    return [
        {
            "group": group,
            "kind": chat.kind,
            "messages": chat.messages[:-1],
            "expected": chat.answer,
            "match": "story" if group == "stories" else "exact",
        }
        for group, chat in chosen
    ]


def tool_chats(seed: int) -> list[dict]:
    """Return what the assistant has to say in held-out chats with tools, in ``questions``' form."""
    rng = Random(f"{seed}/tools")
    missing = dict(TOOL_KINDS)
    chosen: dict[str, dict] = {}
    while any(missing.values()):
        chat = tool_use.draw_chat(rng, draw_simple, True)
        asked = max(i for i, m in enumerate(chat.messages) if m["role"] == "user")
        ends = [(chat.kind, asked + 1)]
        if len(chat.messages) > asked + 2:
            ends.append(("tool_answer", len(chat.messages) - 1))
        for kind, end in ends:
            messages = chat.messages[:end]
            key = json.dumps([messages, chat.tools])
            if missing[kind] and key not in chosen:
                missing[kind] -= 1
                chosen[key] = {
                    "group": "tools",
                    "kind": kind,
                    "tools": chat.tools,
                    "messages": messages,
                    "expected": tool_use.written(chat.messages[end]),
                    "match": "exact",
                }
    return sorted(chosen.values(), key=lambda question: list(TOOL_KINDS).index(question["kind"]))


def write_lines(path: Path, rows: list[dict]) -> None:
    """Write one JSON object a line."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def heldout_text(seed: int, num_bytes: int = TEXT_BYTES) -> str:
    """Return held-out documents, each once, joined by blank lines, of ``num_bytes`` or more."""
    rng = Random(f"{seed}/text")
    documents: dict[str, None] = {}
    size = 0
    while size < num_bytes:
        document = plain_text.draw(rng, True)
        if document not in documents:
            documents[document] = None
            size += len(document) + 2
    return "\n\n".join(documents) + "\n"


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_lines(args.out / "questions.jsonl", questions(args.seed))
    write_lines(args.out / "tools.jsonl", tool_chats(args.seed))
    (args.out / "heldout.txt").write_text(heldout_text(args.seed), encoding="utf-8")


if __name__ == "__main__":
    main()

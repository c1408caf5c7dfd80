"""Measure an exported folder: exact answers by kind, perplexity, and how often a draft agrees.

Usage: ``python -m tools.quire_tiny.evaluate --model quire/assets/quire-tiny [--draft DIR]
[--json FILE] [--transformers]``. Arithmetic is float32 on the bfloat16 weights.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from tools.quire_tiny.corpus import render
from tools.quire_tiny.export import load, write_json
from tools.quire_tiny.model import Llama
from tools.quire_tiny.tokenizer import ENDOFTEXT_ID, IM_END_ID

MAX_NEW_TOKENS = 256
BATCH = 40
STOPS = (IM_END_ID, ENDOFTEXT_ID)


@torch.inference_mode()
def generate(model: Llama, prompts: list[list[int]]) -> list[list[int]]:
    """Continue each prompt greedily up to and including its end token."""
    outputs: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(order), BATCH):
        running = order[start : start + BATCH]
        while running:
            rows = [prompts[i] + outputs[i] for i in running]
            width = max(map(len, rows))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
            hidden = model.hidden(ids)
            last = hidden[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]
            chosen = functional.linear(last, model.embed_tokens.weight).argmax(-1).tolist()
            for i, token in zip(running, chosen, strict=True):
                outputs[i].append(token)
            running = [
                i
                for i in running
                if outputs[i][-1] not in STOPS and len(outputs[i]) < MAX_NEW_TOKENS
            ]
    return outputs


def is_right(question: dict, answer: str, stopped: bool) -> bool:
    """Judge an answer: equal to the expected one, or for a story about its hero and ended."""
    if question["match"] == "exact":
        return stopped and answer == question["expected"]
    hero = re.search(r"about an? ([a-z]+)", question["messages"][-1]["content"]).group(1)
    return stopped and hero in answer and len(answer) > 200


@torch.inference_mode()
def perplexity(model: Llama, ids: list[int], window: int) -> float:
    """Return exp of the mean negative log-likelihood over windows, first tokens given."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, window):
        part = torch.tensor([ids[start : start + window]])
        if part.shape[1] < 2:
            continue
        logits = model(part[:, :-1])
        total += float(functional.cross_entropy(logits[0], part[0, 1:], reduction="sum"))
        count += part.shape[1] - 1
    return math.exp(total / count)


@torch.inference_mode()
def agreement(draft: Llama, prompts: list[list[int]], outputs: list[list[int]]) -> float:
    """Return the share of the outputs' tokens that the draft would also choose greedily."""
    same, count = 0, 0
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = draft(torch.tensor([prompt + output[:-1]]))[0, len(prompt) - 1 :]
        same += int((logits.argmax(-1) == torch.tensor(output)).sum())
        count += len(output)
    return same / count


def check_transformers(folder: Path, prompts: list[list[int]], outputs: list[list[int]]) -> int:
    """Return how many of the first 100 greedy outputs differ from those of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    different = 0
    for prompt, output in list(zip(prompts, outputs, strict=True))[::7][:100]:
        assert tokenizer(tokenizer.decode(prompt))["input_ids"] == prompt
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, temperature=None
        )
        different += made[0, len(prompt) :].tolist() != output
    return different


def accuracy(questions: list[dict], right: list[bool], field: str) -> dict[str, dict]:
    """Return right, total and share for each value of ``field``."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for question, ok in zip(questions, right, strict=True):
        counts[question[field]][0] += ok
        counts[question[field]][1] += 1
    return {
        k: {"right": r, "total": n, "accuracy": round(r / n, 4)} for k, (r, n) in counts.items()
    }


def evaluate(args: argparse.Namespace) -> dict:
    """Measure everything that was asked for."""
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = load(args.model)
    lines = (args.eval / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    prompts = [
        tokenizer.encode(render(q["messages"], add_generation_prompt=True)).ids for q in questions
    ]
    outputs = generate(model, prompts)
    answers = [tokenizer.decode(output) for output in outputs]
    stopped = [output[-1] == IM_END_ID for output in outputs]
    right = [is_right(*row) for row in zip(questions, answers, stopped, strict=True)]
    text = (args.eval / "heldout.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text).ids
    report = {
        "questions": len(questions),
        "accuracy": round(sum(right) / len(right), 4),
        "stopped": round(sum(stopped) / len(stopped), 4),
        "groups": accuracy(questions, right, "group"),
        "kinds": accuracy(questions, right, "kind"),
        "text_tokens": len(ids),
        "perplexity": {str(w): round(perplexity(model, ids, w), 4) for w in (512, 2048)},
    }
    if args.draft:
        report["draft_agreement"] = round(agreement(load(args.draft), prompts, outputs), 4)
    if args.transformers:
        report["different_in_transformers"] = check_transformers(args.model, prompts, outputs)
    if args.show:
        for question, answer, ok in zip(questions, answers, right, strict=True):
            if not ok:
                print(f"{question['kind']}: {question['messages'][-1]['content']}")
                print(f"    expected {question['expected']!r}\n    got      {answer!r}")
    return report


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--eval", type=Path, default=Path("quire/assets/quire-tiny/eval"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="print the wrong answers")
    parser.add_argument("--transformers", action="store_true", help="compare with transformers")
    args = parser.parse_args()
    report = evaluate(args)
    print(json.dumps(report, indent=2))
    if args.json:
        write_json(args.json, report)


if __name__ == "__main__":
    main()

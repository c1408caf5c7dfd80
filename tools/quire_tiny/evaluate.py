"""Measure an exported folder: exact answers by kind, perplexity, and how often a draft agrees.

Usage: ``python -m tools.quire_tiny.evaluate --model quire/assets/quire-tiny [--draft DIR]
[--json FILE] [--show]``. Answers come from transformers, in float32 on the bfloat16 weights.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.quire_tiny.corpus import render
from tools.quire_tiny.export import load, write_json
from tools.quire_tiny.model import Llama
from tools.quire_tiny.tokenizer import ENDOFTEXT_ID, IM_END_ID, PAD_ID

STOPS = (IM_END_ID, ENDOFTEXT_ID)
BATCH = 32


def read(path: Path) -> list[dict]:
    """Read one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@torch.inference_mode()
def generate(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Continue each prompt greedily with transformers, up to and including its end token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    outputs: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        width = len(prompts[rows[-1]])
        ids = torch.tensor([[PAD_ID] * (width - len(prompts[i])) + prompts[i] for i in rows])
        made = model.generate(ids, attention_mask=(ids != PAD_ID).long())[:, width:].tolist()
        for i, output in zip(rows, made, strict=True):
            ends = [n for n, token in enumerate(output) if token in STOPS]
            outputs[i] = output[: ends[0] + 1] if ends else output
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
def agreement(model: Llama, prompts: list[list[int]], outputs: list[list[int]]) -> float:
    """Return the share of the outputs' tokens that ``model`` would also choose greedily."""
    same, count = 0, 0
    for prompt, output in zip(prompts, outputs, strict=True):
        logits = model(torch.tensor([prompt + output[:-1]]))[0, len(prompt) - 1 :]
        same += int((logits.argmax(-1) == torch.tensor(output)).sum())
        count += len(output)
    return same / count


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
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = load(args.model)
    template = load_tokenizer(args.model).chat_template
    questions = read(args.eval / "questions.jsonl") + read(args.eval / "tools.jsonl")
    rendered = [template.render(q["messages"], tools=q.get("tools") or None) for q in questions]
    assert rendered == [render(q["messages"], True, q.get("tools", ())) for q in questions]
    prompts = [tokenizer(text)["input_ids"] for text in rendered]
    outputs = generate(args.model, prompts)
    answers = [tokenizer.decode(output, skip_special_tokens=True) for output in outputs]
    stopped = [output[-1] == IM_END_ID for output in outputs]
    right = [is_right(*row) for row in zip(questions, answers, stopped, strict=True)]
    plain = [ok for q, ok in zip(questions, right, strict=True) if q["group"] != "tools"]
    text = (args.eval / "heldout.txt").read_text(encoding="utf-8")
    ids = tokenizer(text)["input_ids"]
    report = {
        # Without the chats with tools, which are a group and kinds of their own.
        "questions": len(plain),
        "accuracy": round(sum(plain) / len(plain), 4),
        "stopped": round(sum(stopped) / len(stopped), 4),
        "groups": accuracy(questions, right, "group"),
        "kinds": accuracy(questions, right, "kind"),
        "text_tokens": len(ids),
        # 1.0 says that the training model and transformers compute the same.
        "agreement_with_transformers": round(agreement(model, prompts, outputs), 6),
        "perplexity": {str(w): round(perplexity(model, ids, w), 4) for w in (512, 2048)},
    }
    if args.draft:
        draft = load(args.draft)
        n = len(plain)
        report["draft_agreement"] = round(agreement(draft, prompts[:n], outputs[:n]), 4)
        report["draft_agreement_tools"] = round(agreement(draft, prompts[n:], outputs[n:]), 4)
    if args.show:
        for question, answer, ok in zip(questions, answers, right, strict=True):
            if not ok:
                names = [tool["function"]["name"] for tool in question.get("tools", ())]
                print(f"{question['kind']}: {question['messages'][-1]['content']} {names}")
                print(f"    expected {question['expected']!r}\n    got      {answer!r}")
    return report


def main() -> None:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--eval", type=Path, default=Path("quire/assets/quire-tiny/eval"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the wrong answers")
    args = parser.parse_args()
    report = evaluate(args)
    print(json.dumps(report, indent=2))
    if args.json:
        write_json(args.json, report)


if __name__ == "__main__":
    main()

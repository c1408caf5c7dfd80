"""Measure a folder through Quire's own Python API, with pictures that training never draws.

Usage: ``python -m tools.quire_tiny_vision.evaluate --model quire/assets/quire-tiny-vision
[--number 300] [--json FILE] [--show]``. The seeds are others than the training's, and no edge is as
long: pictures are 250 to 640 pixels wide. An answer is right if it is the expected text.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from PIL import Image

from quire import LLM, SamplingParams
from tools.quire_tiny_vision.questions import KINDS, Question, ask
from tools.quire_tiny_vision.scenes import draw_scene

EDGES = (250, 640)
#: Where a picture shows several things these are counted apart.
SEVERAL = " of several"


def data_url(picture: Image.Image) -> str:
    """Return a picture as the URL of a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def examples(kind: str, number: int) -> Iterator[tuple[Image.Image, Question]]:
    """Draw pictures with a question of a kind each.

    Args:
        kind: One of the questions'; ``colour of several`` and ``shape of several`` are asked of
            pictures of several things, ``colour`` and ``shape`` of those of one.
        number: How many.
    """
    name, index = kind.removesuffix(SEVERAL), 0
    while number:
        random = Random(f"held out {kind} {index}")
        index += 1
        scene = draw_scene(random, edges=EDGES)
        fits = name not in ("colour", "shape") or (len(scene.things) > 1) == (name != kind)
        question = ask(scene, name, random) if fits else None
        if question is not None:
            number -= 1
            yield scene.picture, question


def messages(picture: Image.Image, text: str) -> list[dict]:
    """Return a conversation that asks of a picture."""
    image = {"type": "image_url", "image_url": {"url": data_url(picture)}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


def measure(llm: LLM, kind: str, number: int, *, show: bool = False) -> float:
    """Return the share of a kind's questions that are answered as expected, greedily."""
    asked = list(examples(kind, number))
    chats = [messages(picture, question.text) for picture, question in asked]
    params = SamplingParams(temperature=0, max_tokens=64)
    right = 0
    for (_, question), output in zip(asked, llm.chat(chats, params, use_tqdm=False), strict=True):
        answer = output.outputs[0].text
        right += answer == question.answer
        if show and answer != question.answer:
            print(f"{kind}: {question.text} {question.answer} got {answer}")
    return right / number


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    kinds = [*KINDS, f"colour{SEVERAL}", f"shape{SEVERAL}"]
    with LLM(args.model, threads=1, memory=128 * 2**20) as llm:
        shares = {kind: measure(llm, kind, args.number, show=args.show) for kind in kinds}
    report = {"questions": args.number, "right": {k: round(v, 4) for k, v in shares.items()}}
    text = json.dumps(report, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

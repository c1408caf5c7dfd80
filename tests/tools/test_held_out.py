"""What the embedded models are trained on: honest in its split, true, as the package writes it.

Circle 3 alone runs it: what is drawn changes with the makers, not with what serves.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

from quire.checkpoints.embedded import ASSETS
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.quire_tiny import arithmetic, corpus, heldout, plain_text, tool_use
from tools.quire_tiny.facts import all_facts
from tools.quire_tiny.question import is_held_out
from tools.quire_tiny_vision.batches import make_batch
from tools.quire_tiny_vision.model import ChatTokens
from tools.quire_tiny_vision.questions import KINDS, ask
from tools.quire_tiny_vision.scenes import draw_scene
from tools.quire_tiny_vision.shapes import COLOURS

FOLDER = ASSETS / "quire-tiny"
NUM_CHATS = 4000


def read(name: str) -> list[dict]:
    """Return a committed file of held-out chats."""
    lines = Path(FOLDER / "eval" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_no_phrasing_belongs_to_two_facts_and_none_is_hidden() -> None:
    """A prompt has one answer, or accuracy by exact match would mean nothing."""
    answers: dict[str, set[str]] = {}
    for fact in all_facts():
        assert not all(question.held_out for question in fact.questions()), fact.name
        for question in fact.questions():
            answers.setdefault(question.prompt, set()).add(question.answer)
    assert {prompt: a for prompt, a in answers.items() if len(a) > 1} == {}


def test_committed_questions_never_occur_in_training() -> None:
    """No training chat begins with a held-out question; of a story, only the text is held out."""
    questions = read("questions.jsonl")
    assert len({json.dumps(q["messages"]) for q in questions}) == len(questions) >= 300
    held_out = {json.dumps(q["messages"]) for q in questions if q["match"] == "exact"}
    rng = Random(5)
    for _ in range(5 * NUM_CHATS):
        chat = corpus.draw_chat(rng, held_out=False)
        assert not chat.held_out
        for end in range(1, len(chat.messages), 2):
            assert json.dumps(chat.messages[:end]) not in held_out


def test_committed_text_never_occurs_in_training() -> None:
    text = (FOLDER / "eval" / "heldout.txt").read_text(encoding="utf-8")
    rng = Random(6)
    drawn = [plain_text.draw(rng, held_out=False) for _ in range(3000)]
    assert not set(text.split("\n\n")).intersection(drawn)


def test_drills_hold_no_held_out_sum() -> None:
    """A sum that is held out is not drilled either, whatever the order of its operands."""
    rng = Random(8)
    for line in "\n".join(arithmetic.drill(rng, 10) for _ in range(500)).splitlines():
        a, sign, b, _, _ = line.split()
        low, high = sorted((int(a), int(b)))
        assert not is_held_out(f"add/{low}/{high}" if sign == "+" else f"subtract/{a}/{b}")


def test_no_held_out_call_is_trained_on() -> None:
    """Neither the calls nor the questions without one occur in training chats with tools."""
    chats = read("tools.jsonl")
    assert chats == heldout.tool_chats(heldout.SEED)
    assert Counter(chat["kind"] for chat in chats) == heldout.TOOL_KINDS
    ends = [(chat["messages"][-1], chat["expected"]) for chat in chats]
    asked = {(last["content"], answer) for last, answer in ends if last["role"] == "user"}
    rng = Random(16)
    for _ in range(NUM_CHATS):
        messages = tool_use.draw_chat(rng, corpus.draw_simple, held_out=False).messages
        for user, answer in pairwise(messages):
            if user["role"] == "user":
                assert (user["content"], tool_use.written(answer)) not in asked


def test_chats_render_by_the_template_of_the_package() -> None:
    """The prompt of a request is what the model was trained on, at every turn of the assistant."""
    template = load_tokenizer(FOLDER).chat_template
    rng = Random(14)
    for _ in range(200):
        plain = corpus.draw_chat(rng, held_out=False)
        with_tools = tool_use.draw_chat(rng, corpus.draw_simple, held_out=False)
        for chat in (plain, with_tools):
            text = corpus.render(chat.messages, tools=chat.tools)
            fields = {"tools": chat.tools or None}
            assert template.render(chat.messages, add_generation_prompt=False, **fields) == text
            for i, message in enumerate(chat.messages):
                if message["role"] == "assistant":
                    prompt = template.render(chat.messages[:i], **fields)
                    assert text.startswith(f"{prompt}{tool_use.written(message)}<|im_end|>\n")


def test_answers_about_pictures_are_true() -> None:
    """Of the kinds whose answer can be found again without the questions' own code."""
    asked = Counter()
    for number in range(60):
        scene = draw_scene(Random(f"test {number}"))
        for kind in KINDS:
            if (question := ask(scene, kind, Random(number))) is None:
                continue
            asked[kind] += 1
            answer, things = question.answer, scene.things
            if kind == "count" and question.text.endswith(("shapes?", "objects?")):
                colour = [name for name in COLOURS if f" {name} " in question.text]
                assert answer == f"{sum(not colour or t.colour in colour for t in things)}."
            elif kind == "both":
                (thing,) = things
                assert answer.lower().split()[1:2] == [thing.colour]
                assert answer.endswith(f"{thing.shape}.")
            elif kind == "colour":
                named = [t for t in things if t.shape in question.text] or list(things)
                assert answer.lower()[:-1] in {thing.colour for thing in named}
            elif kind == "describe":
                assert answer.count(" and ") + answer.count(", ") == len(things) - 1
    assert set(asked) == set(KINDS)


def test_questions_of_a_picture_see_it_and_not_each_other() -> None:
    batch = make_batch(1, 0, 8, ChatTokens())
    for parts, visible in zip(batch.parts, batch.visible()[:, 0], strict=True):
        picture = parts == 0
        for part in range(1, int(parts.max()) + 1):
            own = parts == part
            assert visible[own][:, picture].all()
            assert not visible[own][:, ~picture & ~own].any()

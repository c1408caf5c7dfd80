"""What quire-tiny-vision is trained on: scenes drawn again, true answers, its tokens."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from quire.models.embedded import ASSETS, EMBEDDED_VISION
from quire.text.tokenizer import load_tokenizer
from tools.quire_tiny_vision.batches import make_batch, prepared
from tools.quire_tiny_vision.model import CELLS, ChatTokens, model_config
from tools.quire_tiny_vision.questions import KINDS as QUESTIONS
from tools.quire_tiny_vision.questions import ask, questions
from tools.quire_tiny_vision.scenes import CELL_COLOURS, KINDS, cell_labels, draw_scene
from tools.quire_tiny_vision.shapes import COLOURS, SHAPES, mask

FOLDER = ASSETS / EMBEDDED_VISION
SCENES = [draw_scene(Random(f"test {number}")) for number in range(60)]


def test_the_same_seed_draws_the_same_batch():
    first, second = (make_batch(3, 7, 4, ChatTokens()) for _ in range(2))
    for name in ("pixels", "labels", "ids", "positions", "parts", "said"):
        assert getattr(first, name).equal(getattr(second, name))
    assert not first.pixels.equal(make_batch(3, 8, 4, None).pixels)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_fills_what_it_says(shape):
    radius = 20
    drawn = np.asarray(mask(shape, radius, Random(shape))) > 127
    assert min(drawn.shape) >= 2 * radius
    assert 0.15 < drawn.mean() < 0.95
    assert drawn[[0, -1]].mean() < 0.95


def test_things_stand_apart_and_cells_show_them():
    for scene in SCENES:
        kinds, colours = cell_labels(scene, CELLS)
        shown = {(KINDS[k], CELL_COLOURS[c]) for k, c in zip(kinds, colours, strict=True) if k > 0}
        assert shown <= {(thing.shape, thing.colour) for thing in scene.things}
        overlap = sum(np.asarray(covered, np.float32) > 127 for covered in scene.masks)
        assert np.max(overlap) == 1


def test_answers_are_true():
    """Of the kinds whose answer can be found again without the questions' own code."""
    asked = Counter()
    for number, scene in enumerate(SCENES):
        things = scene.things
        for kind in QUESTIONS:
            question = ask(scene, kind, Random(number))
            if question is None:
                continue
            asked[kind] += 1
            answer = question.answer
            if kind == "count" and question.text.endswith(("shapes?", "objects?")):
                colour = [name for name in COLOURS if f" {name} " in question.text]
                seen = [thing for thing in things if not colour or thing.colour in colour]
                assert answer == f"{len(seen)}."
            elif kind == "both":
                (thing,) = things
                assert answer.lower().split()[1:2] == [thing.colour]
                assert answer.endswith(f"{thing.shape}.")
            elif kind == "colour":
                named = [t for t in things if t.shape in question.text] or list(things)
                assert answer.lower()[:-1] in {thing.colour for thing in named}
            elif kind == "describe":
                assert answer.count(" and ") + answer.count(", ") == len(things) - 1
    assert set(asked) == set(QUESTIONS)


def test_questions_of_a_picture_differ():
    for number, scene in enumerate(SCENES):
        texts = [question.text for question in questions(scene, Random(number), 4)]
        assert 0 < len(texts) == len(set(texts)) <= 4


def test_questions_of_a_picture_see_it_and_not_each_other():
    batch = make_batch(1, 0, 8, ChatTokens())
    visible = batch.visible()[:, 0]
    apart = 0
    for row, parts in enumerate(batch.parts):
        picture = parts == 0
        for part in range(1, int(parts.max()) + 1):
            own = parts == part
            sees = visible[row][own]
            assert sees[:, picture].all()
            assert not sees[:, ~picture & ~own].any()
            assert batch.positions[row][own][0] == int(picture.sum())
            apart += part > 1
    assert apart, "some chats have questions that stand alone"


def test_training_writes_a_chat_as_the_template_does():
    template = load_tokenizer(FOLDER)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What shape is it?"},
                                     {"type": "image"}]},
        {"role": "assistant", "content": "A star."},
        {"role": "user", "content": "What colour is it?"},
        {"role": "assistant", "content": "Red."},
    ]  # fmt: skip
    chat = ChatTokens()
    opening = chat.opening(picture=True)
    one = chat.turn("What shape is it?", "A star.", first=True)[0]
    two = chat.turn("What colour is it?", "Red.", first=False)[0]
    template.chat_template.picture_text = "<image>"
    parts = template.render_chat(messages, add_generation_prompt=False)
    written = template.encode_parts(parts, False)
    (place,) = [index for index, token in enumerate(written) if token == opening[-1]]
    rows = opening.count(opening[-1])
    made = [*written[:place], *opening[-rows:], *written[place + 1 :]]
    assert made == [*opening, *one, *two, *template.encode("\n")]


def test_the_package_has_the_shape_that_is_trained():
    stored = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    made = model_config().to_diff_dict()
    for part in ("vision_config", "text_config"):
        same = {key: stored[part][key] for key in made[part] if key in stored[part]}
        assert same == {key: made[part][key] for key in same}
        assert len(same) > 5
    assert (FOLDER / "model.safetensors").stat().st_size < 6_000_000


def test_pictures_are_prepared_as_quire_prepares_them():
    import io

    from quire.llm.pictures.decoding import decode
    from quire.models.config_reader import read_model_config

    shape = read_model_config(FOLDER).vision.input
    file = io.BytesIO()
    SCENES[0].picture.save(file, "PNG")
    (decoded,) = decode(file.getvalue(), shape).parts
    pixels = np.frombuffer(decoded.data, np.uint8).reshape(CELLS * 8, -1, 3)
    values = pixels.astype(np.float32) * np.float32(1 / 255) * 2 - 1
    np.testing.assert_allclose(prepared(SCENES[0].picture), values.transpose(2, 0, 1), atol=1e-6)

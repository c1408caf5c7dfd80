"""The model that ships reads pictures: colours, shapes and digits, by every way to ask it."""

from __future__ import annotations

import openai
import pytest

pytest.importorskip("PIL")

from PIL import Image, ImageDraw, ImageFont

from quire import LLM
from quire.checkpoints.embedded import EMBEDDED_VISION
from tests.servers import start_server
from tests.sizes import sized
from tools.quire_tiny_vision.evaluate import examples, measure, messages

#: Shares of right answers that the model must reach; the model card has those that it does.
LEAST = {"colour": 0.95, "shape": 0.95, "both": 0.9}
#: Of each kind; a wrong one in twenty is as many as may be.
NUM_MEASURED, NUM_SERVED = sized(20, 100), sized(3, 20)


@pytest.fixture(scope="module")
def llm(device):
    """The model, in this process."""
    with LLM(EMBEDDED_VISION, device=device, memory=128 * 2**20, threads=1) as made:
        yield made


@pytest.mark.parametrize("kind", LEAST)
def test_it_names_colour_and_shape(llm, kind):
    """Of pictures of sizes and seeds that training never draws."""
    assert measure(llm, kind, NUM_MEASURED) >= LEAST[kind]


def drawing(draw, size=(320, 240)):
    """Return a picture as a user would draw it with Pillow, without smooth edges."""
    picture = Image.new("RGB", size, "white")
    draw(ImageDraw.Draw(picture))
    return picture


DRAWINGS = {
    "A red circle.": lambda d: d.ellipse((80, 40, 220, 180), fill="red"),
    "A blue square.": lambda d: d.rectangle((80, 40, 220, 180), fill="blue"),
    "A green triangle.": lambda d: d.polygon([(150, 30), (240, 190), (60, 190)], fill="green"),
    "A black circle.": lambda d: d.ellipse((20, 20, 100, 100), fill="black"),
}


@pytest.mark.parametrize("answer", DRAWINGS)
def test_it_names_what_others_draw(llm, answer):
    (output,) = llm.chat(messages(drawing(DRAWINGS[answer]), "What is in the picture?"))
    assert output.outputs[0].text == answer


def test_a_digit_is_read(llm):
    font = ImageFont.load_default(160)
    picture = drawing(lambda d: d.text((110, 30), "7", fill="black", font=font), (300, 260))
    (output,) = llm.chat(messages(picture, "Which digit is it?"))
    assert output.outputs[0].text == "7."


def test_without_a_picture_it_asks_for_one(llm):
    (output,) = llm.chat([{"role": "user", "content": "What colour is it?"}])
    assert output.outputs[0].text == "Please send me a picture of coloured shapes or of a digit."


def test_the_server_answers_openai_s_client():
    asked = list(examples("colour", NUM_SERVED)) + list(examples("shape", NUM_SERVED))
    with (
        start_server([EMBEDDED_VISION, "--memory", "128MiB", "--threads", "1"]) as server,
        openai.OpenAI(
            base_url=f"{server.wait_ready()}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        assert EMBEDDED_VISION in {model.id for model in client.models.list()}
        right = 0
        for picture, question in asked:
            answer = client.chat.completions.create(
                model=EMBEDDED_VISION, messages=messages(picture, question.text)
            )
            right += answer.choices[0].message.content == question.answer
    assert right >= 0.95 * len(asked)

"""Pictures, as the clients' own documentation sends them."""

from __future__ import annotations

import pytest

from tests.clients.samples import picture_url

openai = pytest.importorskip("openai", reason="run scripts/test_clients")
messages = pytest.importorskip("langchain_core.messages", reason="run scripts/test_clients")
langchain_openai = pytest.importorskip("langchain_openai", reason="run scripts/test_clients")

TEXT = {"type": "text", "text": "Which colour?"}
#: Of the model's encoder.
TOKENS = 16


def part(red=200):
    return {"type": "image_url", "image_url": {"url": picture_url(red)}}


@pytest.fixture
def client(pictures_url, key):
    with openai.OpenAI(base_url=pictures_url, api_key=key, max_retries=0) as made:
        yield made


@pytest.fixture
def model(pictures_url, key):
    return langchain_openai.ChatOpenAI(
        model="llava", base_url=pictures_url, api_key=key, temperature=0, max_tokens=8,
        max_retries=0,
    )  # fmt: skip


def answer_of(client, *content, **fields):
    return client.chat.completions.create(
        model="llava", messages=[{"role": "user", "content": list(content)}], temperature=0,
        max_tokens=8, **fields,
    )  # fmt: skip


def test_openai_chat(client):
    text, one, two = (
        answer_of(client, TEXT, *parts).usage.prompt_tokens
        for parts in ([], [part()], [part()] * 2)
    )
    assert text + TOKENS <= one < two
    whole = answer_of(client, TEXT, part()).choices[0].message.content
    chunks = list(answer_of(client, TEXT, part(), stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole


def test_openai_responses(client):
    content = [
        {"type": "input_text", "text": "Which colour?"},
        {"type": "input_image", "image_url": picture_url(), "detail": "auto"},
    ]
    answer = client.responses.create(
        model="llava", input=[{"role": "user", "content": content}], max_output_tokens=16
    )
    assert answer.usage.input_tokens > TOKENS and answer.usage.output_tokens > 0


def test_openai_names_the_field_of_what_is_no_picture(client):
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="must be one of PNG") as caught:
        answer_of(client, TEXT, broken)
    assert caught.value.param == "messages[0].content[1].image_url"


def test_langchain(model):
    question = messages.HumanMessage(content=[TEXT, part(), part(30)])
    whole = model.invoke([question])
    assert whole.usage_metadata["input_tokens"] > 2 * TOKENS
    assert "".join(chunk.text for chunk in model.stream([question])) == whole.content


def test_langchain_s_own_blocks(model):
    data = picture_url().partition(",")[2]
    block = {"type": "image", "base64": data, "mime_type": "image/png"}
    same = messages.HumanMessage(content=[TEXT, part()])
    answer = model.invoke([messages.HumanMessage(content=[TEXT, block])])
    assert answer.content == model.invoke([same]).content

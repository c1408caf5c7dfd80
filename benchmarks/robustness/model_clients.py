"""One question in every client's shape, and what each shape makes of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
NUM_TOKENS = 40
#: What a text is the answer to.
CHAT, PROMPT = "chat", "prompt"

_OPENAI = {"max_tokens": NUM_TOKENS, "temperature": 0}
_OLLAMA = {"options": {"num_predict": NUM_TOKENS, "temperature": 0}}


@dataclass(frozen=True)
class Shape:
    """How a client asks and reads.

    Attributes:
        path: Of the endpoint.
        question: ``CHAT`` or ``PROMPT``: equal questions have equal answers in all shapes.
        fields: Of the body, but for model and ``stream``.
        whole: Returns the text of a whole answer.
        piece: Returns the text of an event.
        is_last: Returns whether an event ends the answer.
    """

    path: str
    question: str
    fields: dict[str, Any]
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]
    is_last: Callable[[Any], bool]


def _anthropic_piece(event: Any) -> str:
    delta = event.get("delta", {})
    return str(delta.get("text", "")) if event["type"] == "content_block_delta" else ""


SHAPES: Sequence[Shape] = (
    Shape(
        "/v1/chat/completions",
        CHAT,
        {"messages": MESSAGES, **_OPENAI},
        lambda body: str(body["choices"][0]["message"]["content"]),
        lambda event: event["choices"][0]["delta"].get("content") or "",
        lambda event: event is None,
    ),
    Shape(
        "/v1/completions",
        PROMPT,
        {"prompt": QUESTION, **_OPENAI},
        lambda body: str(body["choices"][0]["text"]),
        lambda event: str(event["choices"][0]["text"]),
        lambda event: event is None,
    ),
    Shape(
        "/api/chat",
        CHAT,
        {"messages": MESSAGES, **_OLLAMA},
        lambda body: str(body["message"]["content"]),
        lambda event: str(event["message"]["content"]),
        lambda event: bool(event["done"]),
    ),
    Shape(
        "/api/generate",
        PROMPT,
        {"prompt": QUESTION, "raw": True, **_OLLAMA},
        lambda body: str(body["response"]),
        lambda event: str(event["response"]),
        lambda event: bool(event["done"]),
    ),
    Shape(
        "/v1/messages",
        CHAT,
        {"messages": MESSAGES, **_OPENAI},
        lambda body: "".join(part["text"] for part in body["content"]),
        _anthropic_piece,
        lambda event: event["type"] == "message_stop",
    ),
)


@dataclass
class Answer:
    """What a client got.

    Attributes:
        status: HTTP status.
        text: Of the answer, as far as it came.
        error: Why there is none, or not the whole.
        ended: It came to its end.
    """

    status: int
    text: str = ""
    error: str = ""
    ended: bool = False


def ask(client: httpx2.Client, model: str, shape: Shape, *, stream: bool) -> Answer:
    """Send the question of a shape to a model and read the answer.

    Raises:
        httpx2.TransportError: There was none within the client's time, or it was cut.
    """
    body = {"model": model, "stream": stream, **shape.fields}
    with client.stream("POST", shape.path, json=body) as response:
        if response.status_code != 200 or not stream:
            content = json.loads(response.read())
            if response.status_code != 200:
                return Answer(response.status_code, error=error_text(content))
            return Answer(200, shape.whole(content), ended=True)
        return _read(shape, response.iter_lines())


def _read(shape: Shape, lines: Iterable[str]) -> Answer:
    answer = Answer(200)
    for line in lines:
        if not line or line.startswith((":", "event:")):
            continue
        data = line.removeprefix("data: ")
        event = None if data == "[DONE]" else json.loads(data)
        assert not answer.ended, f"after the end: {line}"
        if event is not None and event.get("error"):
            answer.error = error_text(event)
            return answer
        answer.ended = shape.is_last(event)
        if event is not None:
            answer.text += shape.piece(event)
    return answer


def error_text(body: Any) -> str:
    """Return the text of an error in whatever shape."""
    error = body["error"]
    return str(error if isinstance(error, str) else error["message"])


def texts_alone(folder: Path, system: str | None = None) -> dict[str, str]:
    """Return a model's answer to each question, with a preset's system prompt, from no server."""
    from quire import LLM, SamplingParams

    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    llm = LLM(folder, device="cpu", threads=1, memory=64 << 20)
    before = [] if system is None else [{"role": "system", "content": system}]
    chat = llm.chat([*before, *MESSAGES], params, use_tqdm=False)
    prompt = llm.generate(QUESTION, params, use_tqdm=False)
    return {CHAT: chat[0].outputs[0].text, PROMPT: prompt[0].outputs[0].text}

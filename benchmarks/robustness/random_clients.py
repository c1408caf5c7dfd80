"""Clients of every temper against one server: some stay, some leave, some set deadlines.

Each request is one of a few bodies whose answer was taken before, alone; a client that stays to the
end must get exactly that answer, whatever other clients do. Owns the load and the client's view of
it; what the server holds afterwards is :mod:`benchmarks.robustness.server_state`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jsonschema

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a short story about a fox.",
    "How many legs has a spider?",
    "Write a haiku about rain.",
    "Name three colours.",
)
#: How a client treats its request.
STAY, LEAVE_LATER, LEAVE_EARLY, DEADLINE = "stay", "leave later", "leave early", "deadline"
TEMPERS = (STAY,) * 4 + (LEAVE_LATER,) * 3 + (LEAVE_EARLY,) * 2 + (DEADLINE,) * 2


@dataclass(frozen=True)
class Question:
    """A request whose answer does not depend on the moment.

    Attributes:
        path: Of the endpoint.
        body: Without ``stream``, ``priority`` and ``timeout``, which do not change the answer.
    """

    path: str
    body: dict[str, Any]


@dataclass
class Answer:
    """What a client got.

    Attributes:
        status: HTTP status, 0 when the client left before it came.
        texts: Of each choice.
        reasons: Finish reasons of each choice, in the order they came; one each is right.
        done: How many ``[DONE]`` came.
        error: Of an error body or event.
        left: The client went away.
    """

    num_choices: int
    status: int = 0
    texts: list[str] = field(default_factory=list)
    reasons: list[list[str]] = field(default_factory=list)
    done: int = 0
    error: dict[str, Any] | None = None
    left: bool = False

    def __post_init__(self) -> None:
        self.texts = [""] * self.num_choices
        self.reasons = [[] for _ in range(self.num_choices)]

    @property
    def begun(self) -> bool:
        """Whether the engine has certainly worked on it."""
        return any(self.texts) or any(self.reasons)

    def take(self, choice: dict[str, Any]) -> None:
        """Add a choice, whole or a piece of one."""
        message = choice.get("message") or choice.get("delta")
        text = choice.get("text") if message is None else message.get("content")
        self.texts[choice["index"]] += text or ""
        if choice["finish_reason"] is not None:
            self.reasons[choice["index"]].append(choice["finish_reason"])


def make_questions(rnd: random.Random, count: int) -> list[Question]:
    """Return requests with every feature mixed in; each is seeded."""
    questions = []
    for number in range(count):
        body: dict[str, Any] = {
            "n": rnd.choice([1, 1, 1, 2, 3]),
            "seed": number,
            "temperature": rnd.choice([0.0, 0.8, 1.2]),
            "max_tokens": rnd.choice([1, 8, 40, 120, 250]),
        }
        body |= rnd.choice(
            [
                {},
                {},
                {"stop": [rnd.choice("aeiou"), "\n"]},
                {"logprobs": True},
                {"min_tokens": 1, "ignore_eos": True},
                {"response_format": {"type": "json_object"}},
                {
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "person", "schema": PERSON},
                    }
                },
                {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
                {"structured_outputs": {"regex": "[a-z]{3,9}( [0-9]{2}){1,4}"}},
            ]
        )
        body["max_tokens"] = max(body["max_tokens"], body.get("min_tokens", 0))
        text = rnd.choice(QUESTIONS) * rnd.choice([1, 1, 4, 12])
        if rnd.random() < 0.6:
            questions.append(Question(CHAT, {**body, "messages": [_user(text)]}))
        else:
            if "logprobs" in body:
                body["logprobs"] = 2
            questions.append(Question(TEXT, {**body, "prompt": text}))
    return questions


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def ask(client: httpx2.AsyncClient, question: Question, **extra: Any) -> Answer:
    """Send a question and read its answer to the end."""
    answer = Answer(question.body["n"])
    await _ask(client, question, extra, answer, leave_after=None)
    return answer


async def _ask(
    client: httpx2.AsyncClient,
    question: Question,
    extra: dict[str, Any],
    answer: Answer,
    leave_after: int | None,
) -> None:
    body = question.body | extra
    async with client.stream("POST", question.path, json=body) as response:
        answer.status = response.status_code
        if response.status_code != 200:
            answer.error = json.loads(await response.aread())["error"]
            return
        if not extra.get("stream"):
            for choice in json.loads(await response.aread())["choices"]:
                answer.take(choice)
            return
        num_events = 0
        async for line in response.aiter_lines():
            if not line or line.startswith(":"):  # a comment keeps the connection alive
                continue
            num_events += 1
            assert not answer.done, f"after [DONE]: {line}"
            _take_event(answer, line.removeprefix("data: "))
            if num_events == leave_after:
                answer.left = True
                return


def _take_event(answer: Answer, data: str) -> None:
    if data == "[DONE]":
        answer.done += 1
        return
    event = json.loads(data)
    if "error" in event:
        answer.error = event["error"]
        return
    for choice in event["choices"]:
        answer.take(choice)


@dataclass
class Report:
    """Every client's view.

    Attributes:
        tempers, statuses, reasons: How many of each; statuses of those that stayed for them.
        num_begun: Sequences that certainly began.
        num_possible: Sequences that may have begun.
        wrong: What should not have been, as text.
    """

    tempers: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    num_left: int = 0
    num_begun: int = 0
    num_possible: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, question: Question, expected: Answer, answer: Answer, streamed: bool) -> None:
        """Judge one answer."""
        self.num_begun += answer.num_choices * answer.begun
        # A refusal never began; an expired deadline may have.
        began = answer.status in (0, 200, 504)
        self.num_possible += answer.num_choices * began
        self.num_left += answer.left
        self.statuses[answer.status] += 1
        if answer.left:
            return
        problem = self._problem(expected, answer, streamed) or _invalid(question, answer)
        if problem is not None:
            self.wrong.append(f"{problem}: {question.path} {question.body} -> {answer}")
        for reasons in answer.reasons:
            self.reasons.update(reasons)

    @staticmethod
    def _problem(expected: Answer, answer: Answer, streamed: bool) -> str | None:
        if answer.status != 200:
            known = answer.error is not None and answer.error["code"] == answer.status
            return None if known and answer.status in (429, 503, 504) else "unexpected status"
        if answer.error is not None:
            return None if answer.error["code"] == 504 else "error event"
        if streamed and answer.done != 1:
            return "not one [DONE]"
        if any(len(reasons) != 1 for reasons in answer.reasons):
            return "not one ending for each choice"
        for text, (reason,), whole in zip(
            answer.texts, answer.reasons, expected.texts, strict=True
        ):
            same = whole.startswith(text) if reason == "timeout" else whole == text
            if not same:
                return f"not the answer it gets alone ({whole!r})"
        return None


def _invalid(question: Question, answer: Answer) -> str | None:
    """Return why a finished structured answer is not what was asked for."""
    kind = question.body.get("response_format", {}).get("type")
    if kind is None or answer.status != 200 or answer.error is not None:
        return None
    for text, reasons in zip(answer.texts, answer.reasons, strict=True):
        if reasons == ["stop"]:
            try:
                value = json.loads(text)
                if kind == "json_schema":
                    jsonschema.validate(value, PERSON)
            except ValueError as error:
                return f"not the JSON that was asked for ({error})"
    return None


@dataclass(frozen=True)
class Load:
    """How much of it.

    Attributes:
        num_requests: In all.
        concurrency: Clients at a time.
        num_questions: Different bodies.
        seed: Of everything random.
    """

    num_requests: int
    concurrency: int = 28
    num_questions: int = 40
    seed: int = 0


async def run(url: str, load: Load) -> Report:
    """Put the load on the server at ``url``; it must have been idle."""
    rnd = random.Random(load.seed)
    questions = make_questions(rnd, load.num_questions)
    report = Report()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=load.concurrency)
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        alone = [await ask(client, question) for question in questions]
        for question, answer in zip(questions, alone, strict=True):
            assert answer.status == 200 and answer.error is None, (question, answer)
            report.add(question, answer, answer, streamed=False)
        report.statuses.clear()
        report.reasons.clear()
        numbers = iter(range(load.num_requests))

        async def client_after_client() -> None:
            for _ in numbers:
                index = rnd.randrange(len(questions))
                await _one(client, rnd, questions[index], alone[index], report)

        await asyncio.gather(*(client_after_client() for _ in range(load.concurrency)))
    return report


async def _one(
    client: httpx2.AsyncClient,
    rnd: random.Random,
    question: Question,
    expected: Answer,
    report: Report,
) -> None:
    temper = rnd.choice(TEMPERS)
    report.tempers[temper] += 1
    extra: dict[str, Any] = {"stream": rnd.random() < 0.6, "priority": rnd.randrange(-2, 3)}
    if temper == DEADLINE:
        extra["timeout"] = rnd.choice([0.001, 0.01, 0.05, 0.2])
    leave_after = rnd.randrange(1, 12) if temper == LEAVE_LATER else None
    patience = rnd.random() * 0.2 if temper == LEAVE_EARLY else None
    if temper == LEAVE_LATER and not extra["stream"]:
        patience = rnd.random() * 0.5
    while True:
        answer = Answer(question.body["n"])
        try:
            async with asyncio.timeout(patience):
                await _ask(client, question, extra, answer, leave_after)
        except TimeoutError:
            answer.left = True
        report.add(question, expected, answer, bool(extra["stream"]))
        if answer.status != 429:
            return
        await asyncio.sleep(0.1 + 0.4 * rnd.random())  # refused: it tries again

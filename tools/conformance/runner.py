"""Plays transcripts against a server and judges the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import jsonschema

from tools.conformance import response_rules, rules
from tools.conformance.transcript import SCHEMAS, Transcript, fill_in

TIMEOUT_SECONDS = 120.0
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class Verdict:
    """What came of a transcript: ``ok``, ``refused`` (an optional feature) or ``wrong``."""

    transcript: Transcript
    outcome: str
    reason: str = ""


class Runner:
    """Sends requests to one server.

    Args:
        base_url: Of the server, with or without ``/v1``.
        api_key: Sent as a bearer token.

    Attributes:
        url: Without ``/v1``.
        model: Id of the served model.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self._key = api_key
        self._definitions = json.loads(SCHEMAS.read_text())
        self._validators: dict[str, Any] = {}  # by schema: to check one takes a tenth of a second
        self._client = httpx2.Client(timeout=TIMEOUT_SECONDS)
        listed = self._client.get(f"{self.url}/v1/models", headers=self._headers(False))
        listed.raise_for_status()
        self.model: str = listed.json()["data"][0]["id"]

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def run(self, transcripts: Iterable[Transcript]) -> Iterator[Verdict]:
        """Yield a verdict for each transcript."""
        for transcript in transcripts:
            if transcript.without_key and self._key is None:
                yield Verdict(transcript, "refused", "the server needs no key")
                continue
            with ThreadPoolExecutor(transcript.burst) as pool:
                jobs = [pool.submit(self._judge, transcript) for _ in range(transcript.burst)]
                verdicts = [job.result() for job in jobs]
            worst = [verdict for verdict in verdicts if verdict.outcome == "wrong"]
            yield (worst or verdicts)[0]

    def _headers(self, without_key: bool) -> dict[str, str]:
        if self._key is None:
            return {}
        return {"authorization": f"Bearer {'wrong' if without_key else self._key}"}

    def _judge(self, transcript: Transcript) -> Verdict:
        try:
            return self._play(transcript)
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            return Verdict(transcript, "wrong", f"no answer that can be read: {error!r}")

    def _play(self, transcript: Transcript) -> Verdict:
        answers: list[Any] = []
        for step in transcript.before:
            asked = Transcript(transcript.area, transcript.name, **fill_in(step, answers))
            response = self._send(asked)
            if not answers and response.status_code in transcript.optional:
                return self._refusal(transcript, response)
            if response.status_code != 200:
                return Verdict(transcript, "wrong", f"before it: {response.text[:200]}")
            answers.append(response.json())
        if answers:
            filled = {
                name: fill_in(getattr(transcript, name), answers)
                for name in ("path", "body", "rules", "error")
            }
            transcript = replace(transcript, **filled, optional=())
        response = self._send(transcript)
        if response.status_code in transcript.optional:
            return self._refusal(transcript, response)
        problem = self._problem(transcript, response)
        return Verdict(transcript, "ok" if problem is None else "wrong", problem or "")

    def _send(self, transcript: Transcript) -> httpx2.Response:
        headers = self._headers(transcript.without_key)
        content = None
        if transcript.content is not None or transcript.body is not None:
            headers["content-type"] = "application/json"
            text = transcript.content or json.dumps(transcript.body)
            content = text.replace("$MODEL", self.model)
        if content is not None and transcript.padding_bytes:
            content = content[:-1] + ', "padding": "' + "x" * transcript.padding_bytes + '"}'
        return self._client.request(
            transcript.method,
            f"{self.url}{transcript.path.replace('$MODEL', self.model)}",
            headers=headers | transcript.headers,
            content=content,
        )

    def _refusal(self, transcript: Transcript, response: httpx2.Response) -> Verdict:
        problem = self._error_problem(response)
        if problem is not None:
            return Verdict(transcript, "wrong", problem)
        return Verdict(transcript, "refused", response.json()["error"]["message"])

    def _problem(self, transcript: Transcript, response: httpx2.Response) -> str | None:
        if response.status_code not in transcript.status:
            return f"status {response.status_code}: {response.text[:200]}"
        if response.status_code >= 400:
            return self._error_problem(response, transcript.error)
        for name, pattern in transcript.answer_headers.items():
            if not re.fullmatch(pattern, response.headers.get(name, "")):
                return f"header {name}: {response.headers.get(name)!r}"
        if transcript.stream:
            return self._stream_problem(transcript, response)
        if transcript.schema is None:
            return None
        answer = response.json()
        return self._schema_problem(answer, transcript.schema) or self._rule_problem(
            transcript, answer
        )

    def _error_problem(self, response: httpx2.Response, pattern: str = ".*") -> str | None:
        """Judge an error: OpenAI's body, ``code`` the status, a time to come back on 429."""
        if not response.headers.get("content-type", "").startswith("application/json"):
            return f"an error of type {response.headers.get('content-type')!r}"
        if response.status_code == 429 and "retry-after" not in response.headers:
            return "429 without Retry-After"
        problem = self._schema_problem(response.json(), {"$ref": "#/$defs/error"})
        if problem is None and response.json()["error"]["code"] != response.status_code:
            return f"code is {response.json()['error']['code']!r}, not the status"
        if problem is None and not re.search(pattern, response.json()["error"]["message"]):
            return f"{response.json()['error']['message']!r} does not say {pattern!r}"
        return problem

    def _stream_problem(self, transcript: Transcript, response: httpx2.Response) -> str | None:
        if not response.headers["content-type"].startswith("text/event-stream"):
            return f"a stream of type {response.headers['content-type']!r}"
        blocks = [block for block in response.text.split("\n\n") if not block.startswith(":")]
        if transcript.path == RESPONSES:
            return self._typed_stream_problem(transcript, blocks)
        if blocks[-2:] != ["data: [DONE]", ""]:
            return f"it ends with {blocks[-2:]}"
        events: list[Any] = []
        for block in blocks[:-2]:
            if not block.startswith("data: ") or "\n" in block:
                return f"not one data line: {block[:200]!r}"
            events.append(json.loads(block.removeprefix("data: ")))
            problem = self._schema_problem(events[-1], transcript.schema or {})
            if problem is not None:
                return problem
        if len({event["id"] for event in events}) != 1:
            return "events of several ids"
        for name, argument in transcript.rules.items():
            if name in rules.OF_EVENTS:
                found = rules.OF_EVENTS[name](events, argument)
                if found is not None:
                    return found
        return self._rule_problem(transcript, rules.joined(events))

    def _typed_stream_problem(self, transcript: Transcript, blocks: list[str]) -> str | None:
        """Judge a stream of ``event:`` and ``data:``; OpenAI's own has no ``[DONE]``."""
        events: list[Any] = []
        for block in blocks[:-1]:
            if block == "data: [DONE]" and block is blocks[-2]:
                continue
            found = re.fullmatch(r"event: (\S+)\ndata: (.*)", block)
            if found is None:
                return f"not an event and its data: {block[:200]!r}"
            events.append(json.loads(found[2]))
            problem = self._schema_problem(events[-1], {"$ref": "#/$defs/response_event"})
            if problem is not None:
                return f"{found[1]}: {problem}"
            if events[-1]["type"] != found[1]:
                return f"event {found[1]} of type {events[-1]['type']}"
        problem = response_rules.order(events)
        if problem is not None:
            return problem
        answer = events[-1]["response"]
        schema = transcript.schema or {}
        return self._schema_problem(answer, schema) or self._rule_problem(transcript, answer)

    def _rule_problem(self, transcript: Transcript, answer: Any) -> str | None:
        of_responses = transcript.path.startswith(RESPONSES)
        known = response_rules.OF_RESPONSES if of_responses else rules.OF_ANSWERS
        for name, argument in transcript.rules.items():
            if name in known:
                found = known[name](answer, argument)
                if found is not None:
                    return f"{name}: {found}"
        return None

    def _schema_problem(self, value: Any, schema: dict[str, Any]) -> str | None:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = schema | {"$defs": self._definitions}
            kind = jsonschema.validators.validator_for(whole)
            kind.check_schema(whole)
            self._validators[key] = kind(whole)
        error = jsonschema.exceptions.best_match(self._validators[key].iter_errors(value))
        return None if error is None else f"{error.json_path}: {error.message[:200]}"

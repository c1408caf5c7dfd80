"""One streamed request in OpenAI's API and the record of what came when; not the connection."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from quire.bench.connection import ConnectionPool
from quire.bench.server_options import TargetOptions
from quire.bench.workload import BenchRequest
from quire.core.errors import ConfigError

_EVENT_END = re.compile(rb"\r?\n\r?\n")
#: What decoding raises for bytes from outside: no JSON, not UTF-8, nested too deep.
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: Bytes kept of an answer that is no stream, for its message.
HEAD_BYTES = 1 << 14
#: Seconds until a server that takes a connection and says nothing is given up.
PROBE_SECONDS = 10.0

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Text(msgspec.Struct):
    """A chat delta, or the part of a completion's choice that has its role."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Text | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    def words(self) -> str:
        """Return the new text."""
        if self.delta is None:
            return self.text or ""
        delta = self.delta
        return (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")

    def carries_output(self) -> bool:
        """Return whether a generated token came with it.

        A chunk without text is one (of a token that is no whole character yet), unless it opens
        the answer with its role or closes it with its reason.
        """
        if self.words() or self.token_ids or (self.delta and self.delta.tool_calls):
            return True
        opens = self.delta is not None and self.delta.role is not None
        return not opens and self.finish_reason is None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0


class Event(msgspec.Struct):
    """The data of an event: of chat completions, completions, or an error."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(slots=True)
class Record:
    """The client's record of one request; times are seconds of ``time.perf_counter``.

    Attributes:
        due: Time at which the request should have been sent.
        sent: Time at which it was sent, after the wait for a place under ``--max-concurrency``.
        times: Arrival of each chunk with output.
        text: Text of the answer.
        num_prompt_tokens, num_output_tokens: Tokens by the server's usage; without a usage, the
            length that was asked for, and the number of chunks.
        error: The reason why the request failed, else None.
    """

    job: BenchRequest
    due: float
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    counted_by_server: bool = False
    error: str | None = None


class StreamReader:
    """Takes an event stream apart as its bytes come."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.words: list[str] = []
        self.usage: _Usage | None = None
        self.finished = False
        self.error: str | None = None
        self.head = b""
        self._buffer = b""
        self._decoder = msgspec.json.Decoder(Event)

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes, which came at ``now``."""
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        *events, self._buffer = _EVENT_END.split(self._buffer + data)
        for event in events:
            for line in event.splitlines():
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), now)

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.finished = True
            return
        try:
            event = self._decoder.decode(data)
        except NO_JSON as error:
            self.error = self.error or f"an event is no JSON of this API: {error}"
            return
        if event.error is not None:
            self.error = self.error or message_of(event.error)
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices:
            self.finished |= choice.finish_reason is not None
            if choice.carries_output():
                self.times.append(now)
                self.words.append(choice.words())


def message_of(error: Any) -> str:
    """Return the words of an OpenAI error object, or of whatever came instead."""
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:300]


class LoadClient:
    """Sends jobs to one server.

    Attributes:
        model: Name that is asked for.
        pool: Connections to the server.
    """

    def __init__(self, options: TargetOptions, model: str, pool: ConnectionPool) -> None:
        self._options, self.model, self.pool = options, model, pool
        self._extra = parse_fields("--extra-body", options.extra_body)
        self._path = options.path()

    def body(self, job: BenchRequest) -> bytes:
        """Return the request as JSON."""
        options = self._options
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": job.max_tokens,
            "temperature": options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.ignore_eos:
            fields["ignore_eos"] = True
        if options.backend == "openai-chat":
            fields["messages"] = [{"role": "user", "content": job.prompt}]
        else:
            fields["prompt"] = job.prompt
        return msgspec.json.encode(fields | job.fields | self._extra)

    async def run(self, record: Record) -> None:
        """Send the record's job now and fill in the rest of the record; never raises."""
        body = self.body(record.job)
        reader = StreamReader()
        record.sent = time.perf_counter()
        try:
            async with asyncio.timeout(self._options.request_timeout):
                status = await self.pool.send("POST", self._path, body, reader.feed)
        except TimeoutError:
            record.error = f"no end within --request-timeout {self._options.request_timeout:g} s"
        except OSError as error:
            record.error = str(error) or type(error).__name__
        else:
            record.error = reader.error if status == 200 else refusal(status, reader.head)
            if record.error is None and not (reader.finished and reader.times):
                record.error = "the stream ended without output" if not reader.times else (
                    "the stream ended without an ending"
                )  # fmt: skip
        record.times = reader.times
        record.text = "".join(reader.words)
        record.counted_by_server = reader.usage is not None
        if reader.usage is not None:
            record.num_prompt_tokens = reader.usage.prompt_tokens
            record.num_output_tokens = reader.usage.completion_tokens
        else:
            record.num_prompt_tokens = record.job.num_prompt_tokens
            record.num_output_tokens = len(reader.times)


def refusal(status: int, body: bytes) -> str:
    """Return status and words of an answer other than 200; ``body`` may be cut."""
    try:
        decoded = msgspec.json.decode(body)
    except NO_JSON:
        decoded = body.decode(errors="replace")
    if isinstance(decoded, dict):
        decoded = decoded.get("error", decoded)
    return f"HTTP {status}: {message_of(decoded)}"


def parse_fields(flag: str, text: str | None) -> dict[str, Any]:
    """Return the request fields that a flag's value has; none without a value.

    Raises:
        ConfigError: The value is not a JSON object.
    """
    try:
        fields = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ConfigError(f"[bench] {flag} must be JSON; got {error}.") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"[bench] {flag} must be a JSON object; got {text}.")
    return fields


async def get(pool: ConnectionPool, path: str) -> tuple[int, bytes]:
    """Return status and body of a GET.

    Raises:
        OSError: The server cannot be reached, or does not answer.
    """
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            status = await pool.send("GET", path, b"", lambda data, now: parts.append(data))
    except TimeoutError:
        raise OSError(f"no answer within {PROBE_SECONDS:g} s") from None
    return status, b"".join(parts)


async def first_model(pool: ConnectionPool) -> str:
    """Return the first model that the server lists.

    Raises:
        ConfigError: The server lists no model.
    """
    status, body = await get(pool, "/v1/models")
    try:
        return msgspec.json.decode(body, type=_Models).data[0].id
    except (*NO_JSON, IndexError) as error:
        raise ConfigError(
            f"[bench] the server must list a model at /v1/models; got HTTP {status}. Give --model."
        ) from error


async def wait_ready(pool: ConnectionPool, seconds: float) -> None:
    """Wait until the server answers ``/health`` or ``/v1/models`` with 200.

    Raises:
        ConfigError: The server did not answer so within ``seconds``; at 0 it is asked once.
    """
    deadline = time.perf_counter() + seconds
    while True:
        reason = "nothing"
        for path in ("/health", "/v1/models"):
            try:
                status, _ = await get(pool, path)
            except OSError as error:
                reason = str(error) or type(error).__name__
            else:
                if status in (200, 401, 403):
                    return
                reason = f"HTTP {status}"
        if time.perf_counter() >= deadline:
            raise ConfigError(
                f"[bench] the server at {pool.host}:{pool.port} must be ready; got {reason}. "
                "See --ready-check-timeout-sec."
            )
        await asyncio.sleep(0.2)

"""``/api/generate``, ``/api/chat``, ``/api/embed`` and ``/api/show`` of Ollama on the wire."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, UnsetType

from quire.protocol.compat import CommonSettings, CompatRequest, refuse, shared_fields
from quire.protocol.generation import Count
from quire.protocol.openai.chat_completion import (
    ChatCompletionRequest,
    ChosenTokenLogprob,
    Message,
)
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.request_body import RequestBody
from quire.protocol.speculative_fields import SpeculativeField
from quire.protocol.structured_output_fields import StructuredOutputsField
from quire.protocol.tools import CalledFunction, Tool, ToolCall

#: Our names of options; ``num_predict`` needs more.
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed",
        "stop", "speculative", "repeat_last_n",
    )
} | {"repeat_penalty": "repetition_penalty"}  # fmt: skip
#: Theirs, by ours.
OPTION_NAMES = {ours: theirs for theirs, ours in _NAMES.items()} | {"max_tokens": "num_predict"}

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_UNIT_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0,
    "h": 3600.0,
}  # fmt: skip
#: Characters of a duration: a regular expression lets no other thread go on before its end.
_MAX_DURATION = 1024
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
_DURATION = re.compile(rf"([-+]?)(0|(?:{_PART})+)", re.ASCII)


def read_keep_alive(value: float | str | None) -> float | None:
    """Return the seconds that a model is to stay after a request, :data:`math.inf` for ever.

    Args:
        value: Seconds, or a duration as Go writes it (``5m``, ``1h30m``); negative means for ever.
            None says nothing, and None is returned.

    Raises:
        RequestError: The value is neither seconds nor a duration.
    """
    if value is None or isinstance(value, float | int):
        seconds = value
    else:
        found = None if len(value) > _MAX_DURATION else _DURATION.fullmatch(value)
        if found is None:
            rule = 'must be seconds, or a duration with units such as "5m"'
            raise refuse("keep_alive", rule, value)
        parts = re.findall(_PART, found[2])
        seconds = sum(float(count) * _UNIT_SECONDS[unit] for count, unit in parts)
        seconds = -seconds if found[1] == "-" else seconds
    return math.inf if seconds is not None and seconds < 0 else seconds


class OllamaOptions(CommonSettings, kw_only=True):
    """``options``; None means the default."""

    num_predict: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_last_n: Count | None = None
    stop: str | list[str] | None = None
    speculative: SpeculativeField = None


class OllamaRequest(CompatRequest, kw_only=True):
    """Fields of both routes."""

    refused = {
        "options.typical_p": (1.0,),
        "options.tfs_z": (1.0,),
        "options.mirostat": (0,),
        "options.penalize_newline": (True,),
        "_debug_render_only": (False,),
    }
    sent_names = {ours: f"options.{theirs}" for ours, theirs in OPTION_NAMES.items()} | {
        "max_completion_tokens": "options.num_predict",
        "structured_outputs": "format",
        "enable_thinking": "think",
        "reasoning_effort": "think",
    }

    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None

    def efforts(self) -> list[tuple[str, str | bool]]:
        """Return ``think`` where it is more than on or off."""
        return [("think", self.think)] if isinstance(self.think, str) else []

    @property
    def asks_to_stream(self) -> bool | None:
        """Ollama streams unless it is told not to."""
        return self.stream is not False

    def shared(self) -> dict[str, Any]:
        """Return what both kinds of our own requests take."""
        options = self.options or OllamaOptions()
        fields = shared_fields(options, _NAMES)
        if options.seed is not None and options.seed < 0:
            del fields["seed"]  # any
        limit = options.num_predict
        if limit is not None and limit < 1 and limit not in (-1, -2):
            rule = "must be at least 1, or -1 or -2 for no limit"
            raise refuse("options.num_predict", rule, limit)
        fields["max_tokens"] = None if limit is None or limit < 0 else limit
        if self.format == "json":
            fields["structured_outputs"] = StructuredOutputsField(json_object=True)
        elif self.format:
            fields["structured_outputs"] = StructuredOutputsField(json=self.format)
        return fields | {"stream": self.stream}

    @property
    def only_loads(self) -> bool:
        """Whether it asks for no text: in Ollama that loads the model."""
        return False

    @property
    def num_messages(self) -> int:
        """The number of messages and pictures in the request."""
        return 1

    @property
    def text_after(self) -> str:
        """The text that is to follow the answer; empty without one."""
        return ""

    def chat(
        self, messages: list[Message], tools: list[Tool] | None = None
    ) -> ChatCompletionRequest:
        """Return the chat request that has the same answer."""
        think = self.think
        return ChatCompletionRequest(
            **self.shared(),
            messages=messages,
            tools=tools,
            enable_thinking=think if isinstance(think, bool) else None,
            reasoning_effort=think if isinstance(think, str) else None,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
        )


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """``POST /api/generate``."""

    refused = {
        **OllamaRequest.refused,
        "template": ("",),
        "context": ([],),
    }
    sent_names = OllamaRequest.sent_names | {"messages": "prompt", "prompt": "prompt"}

    prompt: str = ""
    images: list[Any] | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None

    @property
    def num_messages(self) -> int:
        """See :attr:`OllamaRequest.num_messages`."""
        return 1 + len(self.images or ())

    @property
    def text_after(self) -> str:
        """See :meth:`OllamaRequest.text_after`."""
        return self.suffix or ""

    @property
    def only_loads(self) -> bool:
        """Whether it has no prompt."""
        return not self.prompt

    def our_request(
        self, takes_pictures: bool = False
    ) -> CompletionRequest | ChatCompletionRequest:
        """Return the request that has the same text: of a chat, unless it is raw.

        With a suffix it has the prompt alone, around whose end the answer is to be put.

        Args:
            takes_pictures: Whether the model reads pictures.

        Raises:
            RequestError: A combination that no single field shows.
        """
        if self.raw and self.suffix:
            raise refuse("suffix", "must be absent when raw is true", self.suffix)
        if not self.raw and not self.suffix:
            content = _content(self.prompt, self.images, "images", takes_pictures)
            messages = [Message(role="user", content=content)]
            if self.system:
                messages.insert(0, Message(role="system", content=self.system))
            return self.chat(messages)
        for name in ("system", "think", "images"):
            if getattr(self, name):
                where = "when raw is true" if self.raw else "when there is a suffix"
                raise refuse(name, f"must be absent {where}", getattr(self, name))
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "needs logprobs: true", self.top_logprobs)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return CompletionRequest(**self.shared(), prompt=self.prompt, logprobs=logprobs)


class OllamaFunction(msgspec.Struct, kw_only=True):
    """``function`` of a call; here the arguments are an object, not its JSON text.

    Of a history they may be that text, as OpenAI's clients keep it, or null.
    """

    name: str
    arguments: dict[str, Any] | str | None = None
    index: int | UnsetType = UNSET


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A call: in an answer, or of the history, where it need not have an id."""

    function: OllamaFunction
    id: str | UnsetType | None = UNSET
    index: int | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One turn of the conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """``POST /api/chat``."""

    messages: list[OllamaMessage] = msgspec.field(default_factory=list)
    tools: list[Tool] | None = None

    @property
    def num_messages(self) -> int:
        """See :attr:`OllamaRequest.num_messages`."""
        return sum(1 + len(message.images or ()) for message in self.messages)

    @property
    def only_loads(self) -> bool:
        """Whether it has no messages."""
        return not self.messages

    def our_request(self, takes_pictures: bool = False) -> ChatCompletionRequest:
        """Return the chat request that has the same answer.

        Args:
            takes_pictures: Whether the model reads pictures.

        Raises:
            RequestError: A message holds what is not served here.
        """
        open_calls = _OpenCalls()
        messages: list[Message] = []
        for index, message in enumerate(self.messages):
            role = _ROLES.get(message.role.lower())
            if role is None:
                rule = "must be system, user, assistant or tool"
                raise refuse(f"messages[{index}].role", rule, message.role)
            where = f"messages[{index}].images"
            said = _content(message.content or "", message.images, where, takes_pictures)
            calls = [
                _call(call, f"{index:05d}{number:04d}")
                for number, call in enumerate(message.tool_calls or ())
            ]
            open_calls.add(calls)
            messages.append(
                Message(
                    role=role,
                    content=said or None if calls else said,
                    reasoning=message.thinking,
                    tool_calls=calls or None,
                    name=message.tool_name,
                    tool_call_id=(
                        open_calls.answer(message.tool_name)
                        if role == "tool" and message.tool_call_id is None
                        else message.tool_call_id
                    ),
                )
            )
        return self.chat(messages, self.tools)


def _content(
    text: str, images: list[Any] | None, where: str, takes_pictures: bool
) -> str | list[dict[str, Any]]:
    """Return a text with pictures before it, each a file in base64, as our content."""
    if not images:
        return text
    if not takes_pictures:
        raise refuse(where, "must be empty: this model takes text only", images)
    for number, data in enumerate(images):
        if not isinstance(data, str):
            raise refuse(f"{where}[{number}]", "must be a file in base64", data)
    urls = [f"data:image/*;base64,{data}" for data in images]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*pictures, {"type": "text", "text": text}]


def _call(call: OllamaToolCall, fallback: str) -> ToolCall:
    """Return our form of a call; templates want ids, and the same one for the same history."""
    given = call.function.arguments
    text = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    function = CalledFunction(name=call.function.name, arguments=text)
    return ToolCall(function=function, id=call.id or fallback)


class _OpenCalls:
    """Calls that no tool's message has answered so far."""

    def __init__(self) -> None:
        self._ids: dict[int, str | None] = {}
        self._numbers = itertools.count()
        #: By name, and all of them under None; those that are not open are dropped when met.
        self._queues: defaultdict[str | None, deque[int]] = defaultdict(deque)

    def add(self, calls: Iterable[ToolCall]) -> None:
        """Take calls that were just made."""
        for number, call in zip(self._numbers, calls, strict=False):
            self._ids[number] = call.id
            for name in (None, call.function.name):
                self._queues[name].append(number)

    def answer(self, name: str | None) -> str | None:
        """Return the id of the oldest call of that name, or else of any; it is open no longer."""
        number = self._oldest(name)
        number = self._oldest(None) if number is None else number
        return None if number is None else self._ids.pop(number)

    def _oldest(self, name: str | None) -> int | None:
        queue = self._queues[name]
        while queue and queue[0] not in self._ids:
            queue.popleft()
        return queue[0] if queue else None


class OllamaAnswerMessage(msgspec.Struct, kw_only=True):
    """The model's answer in a chat."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET
    tool_call_errors: list[str] | UnsetType = UNSET


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """The answer, and with a piece of the text a line of a stream; the last has the counts.

    Durations are in nanoseconds.
    """

    model: str
    created_at: str
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    message: OllamaAnswerMessage | UnsetType = UNSET
    logprobs: list[ChosenTokenLogprob] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaEmbedRequest(RequestBody, kw_only=True):
    """``POST /api/embed`` and the older ``/api/embeddings``, which has ``prompt`` for ``input``.

    Attributes:
        truncate: Whether the end of a text is left out that the model cannot read whole; else such
            a text is refused.
    """

    sent_names = {"prompt": "input"}

    input: str | list[str] | None = None
    prompt: str | None = None
    dimensions: int | None = None
    truncate: bool | None = None
    keep_alive: float | str | None = None

    def texts(self) -> list[str]:
        """Return what is to become vectors; an empty text alone is nothing, as in Ollama.

        Raises:
            RequestError: Both fields hold something.
        """
        if self.input is not None and self.prompt is not None:
            raise refuse("input", "must be absent when prompt is given", self.input)
        given = self.prompt if self.input is None else self.input
        if not given:
            return []
        return [given] if isinstance(given, str) else given


class OllamaShowRequest(RequestBody, kw_only=True):
    """``POST /api/show``; the older word for ``model`` is ``name``."""

    verbose: bool | None = None

"""``/api/generate``, ``/api/chat``, ``/api/embed`` and ``/api/show`` of Ollama on the wire."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.protocol.chat_completion import (
    ChatCompletionRequest,
    ChosenTokenLogprob,
    Message,
)
from quire.protocol.compat import CommonSettings, CompatRequest, refuse, shared_fields
from quire.protocol.completion import CompletionRequest
from quire.protocol.generation import Count
from quire.protocol.request_body import RequestBody
from quire.protocol.structured_outputs import StructuredOutputsField
from quire.protocol.tools import CalledFunction, Tool, ToolCall

#: Our names of options; ``num_predict`` needs more.
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed",
        "stop",
    )
} | {"repeat_penalty": "repetition_penalty"}  # fmt: skip


class OllamaOptions(CommonSettings, kw_only=True):
    """``options``; None means the default."""

    num_predict: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None


class OllamaRequest(CompatRequest, kw_only=True):
    """Fields of both routes."""

    refused = {
        "options.typical_p": (1.0,),
        "options.tfs_z": (1.0,),
        "options.mirostat": (0,),
        # The penalty looks at all of the text.
        "options.repeat_last_n": (-1,),
        "options.penalize_newline": (True,),
        "options.num_keep": (0,),
    }
    sent_names = {ours: f"options.{theirs}" for theirs, ours in _NAMES.items()} | {
        "max_tokens": "options.num_predict",
        "max_completion_tokens": "options.num_predict",
        "structured_outputs": "format",
        "chat_template_kwargs": "think",
        "reasoning_effort": "think",
    }

    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None

    def efforts(self) -> list[tuple[str, str]]:
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

    def chat(
        self, messages: list[Message], tools: list[Tool] | None = None
    ) -> ChatCompletionRequest:
        """Return the chat request that has the same answer."""
        think = self.think
        return ChatCompletionRequest(
            **self.shared(),
            messages=messages,
            tools=tools,
            chat_template_kwargs=None if think is None else {"enable_thinking": bool(think)},
            reasoning_effort=think if isinstance(think, str) else None,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
        )


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """``POST /api/generate``."""

    refused = {
        **OllamaRequest.refused,
        "suffix": ("",),
        "images": ([],),
        "template": ("",),
        "context": ([],),
    }
    sent_names = OllamaRequest.sent_names | {"messages": "prompt", "prompt": "prompt"}

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None

    @property
    def only_loads(self) -> bool:
        """Whether it has no prompt."""
        return not self.prompt

    def our_request(self) -> CompletionRequest | ChatCompletionRequest:
        """Return the request that has the same text: of a chat, unless it is raw.

        Raises:
            RequestError: A combination that no single field shows.
        """
        if not self.raw:
            messages = [Message(role="user", content=self.prompt)]
            if self.system:
                messages.insert(0, Message(role="system", content=self.system))
            return self.chat(messages)
        for name in ("system", "think"):
            if getattr(self, name) is not None:
                raise refuse(name, "must be absent when raw is true", getattr(self, name))
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "needs logprobs: true", self.top_logprobs)
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return CompletionRequest(**self.shared(), prompt=self.prompt, logprobs=logprobs)


class OllamaFunction(msgspec.Struct, kw_only=True):
    """``function`` of a call; here the arguments are an object, not its JSON text."""

    name: str
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A call: of the history, where it may have an id, or in an answer, where it has none."""

    function: OllamaFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One turn of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
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
    def only_loads(self) -> bool:
        """Whether it has no messages."""
        return not self.messages

    def our_request(self) -> ChatCompletionRequest:
        """Return the chat request that has the same answer.

        Raises:
            RequestError: A message holds what is not served here.
        """
        open_calls = _OpenCalls()
        messages: list[Message] = []
        for index, message in enumerate(self.messages):
            if message.images:
                where = f"messages[{index}].images"
                raise refuse(where, "must be empty: this model takes text only", message.images)
            calls = [
                _call(call, f"{index:05d}{number:04d}")
                for number, call in enumerate(message.tool_calls or ())
            ]
            open_calls.add(calls)
            messages.append(
                Message(
                    role=message.role,
                    content=message.content or "",
                    reasoning=message.thinking,
                    tool_calls=calls or None,
                    name=message.tool_name,
                    tool_call_id=(
                        open_calls.answer(message.tool_name)
                        if message.role == "tool" and message.tool_call_id is None
                        else message.tool_call_id
                    ),
                )
            )
        return self.chat(messages, self.tools)


def _call(call: OllamaToolCall, fallback: str) -> ToolCall:
    """Return our form of a call; templates want ids, and the same one for the same history."""
    function = CalledFunction(
        name=call.function.name, arguments=msgspec.json.encode(call.function.arguments).decode()
    )
    return ToolCall(function=function, id=call.id or fallback)


class _OpenCalls:
    """Calls that no tool's message has answered so far."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
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
    """What the model says in a chat."""

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
    """``POST /api/embed`` and the older ``/api/embeddings``, which has ``prompt`` for ``input``."""

    refused = {"truncate": (True, False), "options": ({},)}
    sent_names = {"prompt": "input"}

    input: str | list[str] | None = None
    prompt: str | None = None
    dimensions: int | None = None

    def texts(self) -> list[str]:
        """Return what is to become vectors.

        Raises:
            RequestError: Both fields hold something.
        """
        if self.input is not None and self.prompt is not None:
            raise refuse("input", "must be absent when prompt is given", self.input)
        given = self.prompt if self.input is None else self.input
        return [given or ""] if isinstance(given, str | None) else given


class OllamaShowRequest(RequestBody, kw_only=True):
    """``POST /api/show``; ``name`` is the older word for ``model``."""

    name: str | None = None
    verbose: bool | None = None

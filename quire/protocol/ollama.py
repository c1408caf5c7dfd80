"""``POST /api/generate`` and ``/api/chat`` of Ollama on the wire."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.protocol.chat_completion import ChatCompletionRequest, Message
from quire.protocol.compat import CompatRequest, refuse, shared_fields
from quire.protocol.completion import CompletionRequest
from quire.protocol.generation import Count, Seed
from quire.protocol.structured_outputs import StructuredOutputsField

#: Our names of options; ``num_predict`` needs more.
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed",
        "stop",
    )
} | {"repeat_penalty": "repetition_penalty"}  # fmt: skip


class OllamaOptions(msgspec.Struct, kw_only=True):
    """``options``; None means the default."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: Count | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None


class OllamaRequest(CompatRequest, kw_only=True):
    """Fields of both routes."""

    refused = {
        "logprobs": (False,),
        "top_logprobs": (0,),
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
    }

    format: Literal["json", ""] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | None = None

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

    def chat(self, messages: list[Message]) -> ChatCompletionRequest:
        """Return the chat request that has the same answer."""
        kwargs = None if self.think is None else {"enable_thinking": self.think}
        return ChatCompletionRequest(
            **self.shared(), messages=messages, chat_template_kwargs=kwargs
        )


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """``POST /api/generate``."""

    refused = OllamaRequest.refused | {
        "suffix": ("",),
        "images": ([],),
        "template": ("",),
        "context": ([],),
    }
    sent_names = OllamaRequest.sent_names | {"messages": "prompt", "prompt": "prompt"}

    prompt: str
    system: str | None = None
    raw: bool | None = None

    def our_request(self) -> CompletionRequest | ChatCompletionRequest:
        """Return the request that has the same text: of a chat, unless it is raw.

        Raises:
            RequestError: A combination that no single field shows.
        """
        if not self.prompt:
            # There it only loads the model, which here is loaded already.
            raise refuse("prompt", "must not be empty", self.prompt)
        if not self.raw:
            messages = [Message(role="user", content=self.prompt)]
            if self.system:
                messages.insert(0, Message(role="system", content=self.system))
            return self.chat(messages)
        for name in ("system", "think"):
            if getattr(self, name) is not None:
                raise refuse(name, "must be absent when raw is true", getattr(self, name))
        return CompletionRequest(**self.shared(), prompt=self.prompt)


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One turn of the conversation; of the last three nothing may be asked."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    tool_name: str | None = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """``POST /api/chat``."""

    refused = OllamaRequest.refused | {"tools": ([],)}

    messages: list[OllamaMessage]

    def our_request(self) -> ChatCompletionRequest:
        """Return the chat request that has the same answer.

        Raises:
            RequestError: A message holds what is not served here.
        """
        messages = []
        for index, message in enumerate(self.messages):
            for name in ("images", "tool_calls", "tool_name"):
                if getattr(message, name):
                    where = f"messages[{index}].{name}"
                    rule = "is not supported here. Use /v1/chat/completions"
                    raise refuse(where, rule, getattr(message, name))
            messages.append(
                Message(role=message.role, content=message.content, reasoning=message.thinking)
            )
        return self.chat(messages)


class OllamaAnswerMessage(msgspec.Struct, kw_only=True):
    """What the model says in a chat."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """The answer, and with a piece of the text a line of a stream; the last has the counts.

    Durations are in nanoseconds.
    """

    model: str
    created_at: str
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    message: OllamaAnswerMessage | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET

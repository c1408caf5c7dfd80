"""``POST /v1/chat/completions`` on the wire; rendering the messages is the text package's."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.errors import RequestError
from quire.protocol.generation import Count, GenerationRequest, Usage
from quire.protocol.request_fields import REFUSED
from quire.protocol.thinking import (
    Effort,
    Reasoning,
    ReasoningEffort,
    Thinking,
    contradiction,
    one_effort,
)
from quire.protocol.tools import ToolCall, ToolRequest

#: Types of parts that hold what a model thought.
_THOUGHTS = ("thinking", "reasoning")


class TextPart(msgspec.Struct, kw_only=True):
    """Fields that a part of a message's content may hold; the template decides which it needs."""

    type: Any = None
    text: Any = None
    refusal: Any = None
    thinking: Any = None
    reasoning: Any = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of the conversation.

    ``content`` may be a list of text parts; the chat template checks and joins them. A refusal
    stands for content that is missing, and parts that are thoughts are the reasoning.

    ``prefix`` (Mistral, DeepSeek) and ``partial`` (Kimi, Qwen) of a last message are
    ``continue_final_message``.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    prefix: bool | None = None
    partial: bool | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it says that the answer is to go on with it."""
        return self.role == "assistant" and bool(self.prefix or self.partial)

    def for_template(self, position: int) -> dict[str, Any]:
        """Return the message as chat templates expect it; ``developer`` becomes ``system``.

        Raises:
            RequestError: The message holds something that is not served; ``param`` gives the path.
        """
        where = f"messages[{position}]"
        if self.role == "function" or self.function_call:
            field = "role" if self.role == "function" else "function_call"
            raise RequestError(
                f"[{where}.{field}] the old form of function calls is not supported. Use tools.",
                f"{where}.{field}",
            )
        if self.tool_calls and self.role != "assistant":
            raise RequestError(
                f"[{where}.tool_calls] belong to the role assistant; got {self.role}.",
                f"{where}.tool_calls",
            )
        if self.audio is not None:
            raise RequestError(f"[{where}.audio] audio is not supported.", f"{where}.audio")
        content, thoughts = self._split_content()
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content or self.refusal or ("" if self.role == "tool" else content),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        given = (self.reasoning, self.reasoning_content, thoughts)
        reasoning = next((text for text in given if text is not None), None)
        if reasoning is not None:
            message["reasoning"] = message["reasoning_content"] = reasoning
            if self.tool_calls and not content:  # gpt-oss reads it so, and not with both
                message["thinking"] = reasoning
        return message

    def _split_content(self) -> tuple[str | list[dict[str, Any]] | None, str | None]:
        """Return the content without its thoughts, and these; only an assistant has some."""
        if self.role != "assistant" or not isinstance(self.content, list):
            return self.content, None
        is_thought = [part.get("type") in _THOUGHTS for part in self.content]
        if not any(is_thought):
            return self.content, None
        parts = list(zip(self.content, is_thought, strict=True))
        thoughts = [_thought(part) for part, thought in parts if thought]
        return [part for part, thought in parts if not thought], "\n".join(filter(None, thoughts))


def _thought(part: dict[str, Any]) -> str:
    """Return the text of a part that is a thought: a text, or Mistral's list of text parts."""
    value = part.get(part["type"])
    if isinstance(value, list):
        texts = [item.get("text") for item in value if isinstance(item, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return value if isinstance(value, str) else ""


class ChatCompletionRequest(ToolRequest, kw_only=True):
    """The request; see docs/server.md for each field."""

    refused = REFUSED | {"echo": (False,), "prompt_embeds": ()}
    sent_names = {"logprobs": "top_logprobs"}

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking: Thinking | bool | None = None
    reasoning: Reasoning | None = None

    def efforts(self) -> list[tuple[str, Effort]]:
        """Return the fields that say whether, and how much, the model is to think."""
        asked, thinking = self.reasoning or Reasoning(), self.thinking
        given: list[tuple[str, Effort | None]] = [
            ("reasoning_effort", self.reasoning_effort),
            ("enable_thinking", self.enable_thinking),
            ("thinking", thinking.on if isinstance(thinking, Thinking) else thinking),
            ("reasoning.effort", asked.effort),
            ("reasoning.enabled", asked.enabled),
        ]
        found = [(name, effort) for name, effort in given if effort is not None]
        if asked.max_tokens and asked.effort is None and asked.enabled is None:
            found.append(("reasoning.max_tokens", True))
        return found

    @property
    def effort(self) -> Effort | None:
        """Whether, or how much, the model is to think; None leaves it to the template."""
        return one_effort(self.efforts(), self.chat_template_kwargs)

    @property
    def continues_last(self) -> bool | None:
        """Whether the answer goes on with the last message."""
        begun = bool(self.messages) and self.messages[-1].is_begun
        return True if begun else self.continue_final_message

    @property
    def shows_reasoning(self) -> bool:
        """Whether the client wants to see the reasoning."""
        excludes = self.reasoning is not None and self.reasoning.exclude
        return self.include_reasoning is not False and not excludes

    def without_effect(self) -> list[str]:
        """Return the budgets for thinking, which cannot be kept."""
        budgets = {
            "thinking.budget_tokens": getattr(self.thinking, "budget_tokens", None),
            "reasoning.max_tokens": getattr(self.reasoning, "max_tokens", None),
        }
        return [name for name, tokens in budgets.items() if tokens is not None]

    def check_reasoning(self) -> None:
        """Refuse what asks to show the reasoning, and to leave it out."""
        exclude = None if self.reasoning is None else self.reasoning.exclude
        if exclude is not None and exclude == self.include_reasoning:
            raise contradiction(
                "reasoning.exclude", exclude, "include_reasoning", self.include_reasoning
            )

    def check(self) -> None:
        """Refuse what no single field shows; see :meth:`GenerationRequest.check`."""
        GenerationRequest.check(self)
        self.check_tools()
        self.check_reasoning()
        if not self.messages:
            raise RequestError("[messages] must hold at least one message; got [].", "messages")
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                f"[top_logprobs] needs logprobs: true; got {self.top_logprobs} without it.",
                "top_logprobs",
            )
        if self.continues_last and self.continue_final_message is False:
            raise contradiction("continue_final_message", False, "prefix of the last message", True)
        if self.continues_last and self.add_generation_prompt:
            raise RequestError(
                "[continue_final_message] excludes add_generation_prompt; got both true.",
                "continue_final_message",
            )
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise RequestError(
                f"[max_completion_tokens] and its old name max_tokens must agree; got {both[1]} "
                f"and {both[0]}. Send one of them.",
                "max_completion_tokens",
            )

    @property
    def output_limit(self) -> int | None:
        """Most tokens to generate, or None when the client set no limit; LM Studio's -1 is none."""
        limit = self.max_completion_tokens
        limit = self.max_tokens if limit is None else limit
        return None if limit == -1 else limit

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives asked for per token, None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenLogprob(msgspec.Struct):
    """A token, its natural log-probability and its exact bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenLogprob(TokenLogprob):
    """The sampled token with the most likely ones at its position."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry per generated token."""

    content: list[ChosenTokenLogprob]


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The generated message."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the ``n`` answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    token_origins: list[str] | UnsetType = UNSET
    tool_call_errors: list[str] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer when it is not streamed."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | UnsetType = UNSET

"""``POST /v1/responses`` on the wire: what is asked, and its turn into a chat request."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import msgspec

from quire.core.errors import RequestError
from quire.protocol.chat_completion import ChatCompletionRequest, Message, ReasoningEffort
from quire.protocol.generation import GenerationRequest
from quire.protocol.request_fields import REFUSED
from quire.protocol.structured_outputs import JsonSchemaFormat, ResponseFormat, StructuredRequest
from quire.protocol.tools import (
    CalledFunction,
    FunctionDefinition,
    Name,
    NamedFunction,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
)

_TEXT_PARTS = ("input_text", "output_text", "text")


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that may be called; here its fields are the tool's own."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunctionTool(msgspec.Struct, kw_only=True):
    """``tool_choice`` as an object."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``text.format``; ``schema`` belongs to the type ``json_schema``."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = msgspec.field(name="schema", default=None)
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """``reasoning``; no summaries are made."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(GenerationRequest, kw_only=True):
    """The request; see docs/responses.md for each field."""

    refused = REFUSED | {
        "background": (False,),
        "conversation": (),
        "context_management": ([],),
        "include": ([],),
        "logprobs": (False,),
        "max_tool_calls": (),
        "max_tokens": (),
        "messages": (),
        "n": (1,),
        "prompt": (),
        "prompt_logprobs": (),
        "return_token_ids": (False,),
        "return_token_origins": (False,),
        "return_tokens_as_token_ids": (False,),
        "response_format": (),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "use_beam_search": (False,),
        "length_penalty": (1.0,),
    }

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningOptions | None = None

    def efforts(self) -> list[tuple[str, str]]:
        """Return ``reasoning.effort``."""
        effort = self.effort
        return [] if effort is None else [("reasoning.effort", effort)]

    @property
    def effort(self) -> ReasoningEffort | None:
        """How much to think before the answer; None leaves it to the model."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def constraint_field(self) -> str | None:
        """The field that asks for structured output; None when none does."""
        form = None if self.text is None else self.text.format
        if form is not None and form.type != "text":
            return "text.format"
        return StructuredRequest.constraint_field.__get__(self)  # type: ignore[no-any-return]

    def chat_request(self, messages: list[Message]) -> ChatCompletionRequest:
        """Return the chat request that has the same answer, ``messages`` being the conversation."""
        shared = {name: getattr(self, name) for name in GenerationRequest.__struct_fields__}
        if self.text is not None and self.text.format is not None:
            shared["response_format"] = _response_format(self.text.format)
        choice: ToolChoice | None
        if isinstance(self.tool_choice, NamedFunctionTool):
            choice = NamedTool(function=NamedFunction(name=self.tool_choice.name))
        else:
            choice = self.tool_choice
        return ChatCompletionRequest(
            **shared,
            messages=messages,
            tools=None if self.tools is None else [_tool(tool) for tool in self.tools],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_completion_tokens=self.max_output_tokens,
            chat_template_kwargs=self.chat_template_kwargs,
            include_reasoning=self.include_reasoning,
            reasoning_effort=self.effort,
        )

    def messages(self, takes_pictures: bool = False) -> list[Message]:
        """Return the input as messages.

        Args:
            takes_pictures: Whether the model reads pictures.

        Raises:
            RequestError: An item is of a kind that is not served, or malformed.
        """
        if self.input == "":
            _refuse("input", "must not be empty", self.input)
        if isinstance(self.input, str):
            return [Message(role="user", content=self.input)]
        messages: list[Message] = []
        reasoning = ""
        for index, item in enumerate(self.input):
            where = f"input[{index}]"
            kind = item.get("type", "message" if "role" in item else None)
            if kind == "reasoning":
                reasoning = _joined_text(item.get("content") or [], where)
                continue
            if kind == "message":
                messages.append(_message(item, where, takes_pictures))
            elif kind == "function_call":
                _add_call(messages, item, where)
            elif kind == "function_call_output":
                messages.append(
                    Message(
                        role="tool",
                        content=_content(item.get("output"), f"{where}.output"),
                        tool_call_id=_text(item, "call_id", where),
                    )
                )
            else:
                _refuse(
                    f"{where}.type",
                    "must be message, reasoning, function_call or function_call_output",
                    kind,
                )
            if reasoning and messages[-1].role == "assistant":
                messages[-1].reasoning = reasoning
            reasoning = ""
        if not messages:
            _refuse("input", "must hold at least one item", self.input)
        return messages


def _tool(tool: FunctionTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(function=function)


def _response_format(form: TextFormat) -> ResponseFormat:
    if form.type != "json_schema":
        return ResponseFormat(type=form.type)
    if form.json_schema is None:
        raise RequestError(
            '[text.format.schema] is needed by type "json_schema"; got none.', "text.format.schema"
        )
    return ResponseFormat(
        type="json_schema", json_schema=JsonSchemaFormat(json_schema=form.json_schema)
    )


def _message(item: dict[str, Any], where: str, takes_pictures: bool) -> Message:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        _refuse(f"{where}.role", "must be user, assistant, system or developer", role)
    value = item.get("content")
    if takes_pictures and isinstance(value, list):
        parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(value)]
        if any(part["type"] == "image_url" for part in parts):
            return Message(role=role, content=parts)
    return Message(role=role, content=_content(value, f"{where}.content"))


def _part(part: Any, where: str) -> dict[str, Any]:
    """Return a part as chats have it."""
    if isinstance(part, dict) and part.get("type") == "input_image":
        if not isinstance(part.get("image_url"), str):
            _refuse(
                f"{where}.image_url", "must be a URL; files are not kept", part.get("image_url")
            )
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": _joined_text([part], where)}


def _content(value: Any, where: str) -> str:
    return value if isinstance(value, str) else _joined_text(value, where)


def _joined_text(parts: Any, where: str) -> str:
    if not isinstance(parts, list):
        _refuse(where, "must be text or a list of parts", parts)
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (*_TEXT_PARTS, "reasoning_text") or not isinstance(part.get("text"), str):
            _refuse(f"{where}[{index}]", "must be a part of text; this model takes text only", part)
        texts.append(part["text"])
    return "".join(texts)


def _add_call(messages: list[Message], item: dict[str, Any], where: str) -> None:
    """Add a call to the assistant's message before it, or begin one."""
    function = CalledFunction(
        name=_text(item, "name", where), arguments=_text(item, "arguments", where)
    )
    call = ToolCall(id=_text(item, "call_id", where), function=function)
    if messages and messages[-1].role == "assistant":
        messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]
    else:
        messages.append(Message(role="assistant", tool_calls=[call]))


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        _refuse(f"{where}.{name}", "must be text", value)
    return value


def _refuse(where: str, rule: str, value: Any) -> NoReturn:
    raise RequestError(f"[{where}] {rule}; got {value!r:.80}.", where)

"""``POST /v1/responses`` on the wire: what is asked, and its turn into a chat request."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.core.errors import RequestError
from quire.protocol.compat import refuse
from quire.protocol.generation import GenerationRequest
from quire.protocol.openai.chat_completion import ChatCompletionRequest, Message
from quire.protocol.openai.response_input import KeptItems, ResponseInput
from quire.protocol.request_fields import REFUSED
from quire.protocol.structured_output_fields import (
    JsonSchemaFormat,
    ResponseFormat,
    StructuredRequest,
)
from quire.protocol.thinking import ReasoningEffort
from quire.protocol.tools import (
    AllowedTool,
    AllowedTools,
    FunctionDefinition,
    Name,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
)


class ResponseTool(msgspec.Struct, kw_only=True):
    """A tool: a function, whose fields are the tool's own, or one that is left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def ours(self, where: str) -> Tool:
        """Return the function in our form; ``where`` is its path.

        Raises:
            RequestError: The function's name is not one that a function may have.
        """
        try:
            name = msgspec.convert(self.name, Name)
        except msgspec.ValidationError as error:
            rule = "must be 1 to 64 letters, digits, dots, hyphens and underscores"
            raise refuse(f"{where}.name", rule, self.name) from error
        function = FunctionDefinition(
            name=name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )
        return Tool(function=function)


class NamedFunctionTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``tool_choice`` as an object, its fields in this route's flat form.

    Of the tools that may be called, those that are no functions are left out.
    """

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None

    def ours(self) -> NamedTool:
        """Return the choice in our form.

        Raises:
            RequestError: The choice lacks a field of its type.
        """
        if self.type == "allowed_tools":
            if self.mode is None or self.tools is None:
                missing = "tools" if self.mode else "mode"
                raise refuse(f"tool_choice.{missing}", "is needed by the type allowed_tools", None)
            chosen = [
                AllowedTool(function=NamedFunction(name=str(tool.get("name", ""))))
                for tool in self.tools
                if tool.get("type") == "function"
            ]
            allowed = AllowedTools(mode=self.mode, tools=chosen)
            return NamedTool(type="allowed_tools", allowed_tools=allowed)
        if self.name is None:
            raise refuse("tool_choice.name", "is needed by the type function", None)
        return NamedTool(function=NamedFunction(name=self.name))


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
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """``reasoning``; no summaries are made."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(GenerationRequest, kw_only=True):
    """The request; see docs/responses.md for each field."""

    refused = REFUSED | {
        "background": (False,),
        "conversation": (),
        "logprobs": (False,),
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
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    reasoning: ReasoningOptions | None = None
    enable_thinking: bool | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    def efforts(self) -> list[tuple[str, str | bool]]:
        """Return ``reasoning.effort`` and ``enable_thinking``."""
        given = [("reasoning.effort", self.effort), ("enable_thinking", self.enable_thinking)]
        return [(name, effort) for name, effort in given if effort is not None]

    @property
    def effort(self) -> ReasoningEffort | None:
        """The effort of thinking before the answer; None leaves it to the model."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def functions(self) -> list[ResponseTool]:
        """The tools that a model is shown; a server runs no others."""
        return [tool for tool in self.tools or () if tool.type == "function"]

    def without_effect(self) -> list[str]:
        """Return the paths of known fields that do nothing, whatever the model and the input."""
        tools = enumerate(self.tools or ())
        found = [f"tools[{index}]" for index, tool in tools if tool.type != "function"]
        asked = self.reasoning
        if asked is not None and (asked.summary or asked.generate_summary):
            found.append("reasoning.summary")
        if self.include:
            found.append("include")
        if self.truncation == "auto":
            found.append("truncation")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            found.append("text.verbosity")
        return found

    @property
    def constraint_field(self) -> str | None:
        """The field that asks for structured output; None when none does."""
        form = None if self.text is None else self.text.format
        if form is not None and form.type != "text":
            return "text.format"
        return StructuredRequest.constraint_field.__get__(self)  # type: ignore[no-any-return]

    def check_include(self) -> None:
        """Refuse to leave out what an answer here could hold.

        Raises:
            RequestError: Log-probabilities are to be included.
        """
        for index, name in enumerate(self.include or ()):
            if name == "message.output_text.logprobs":
                raise refuse(f"include[{index}]", "log-probabilities are not included here", name)

    def chat_request(self, messages: list[Message]) -> ChatCompletionRequest:
        """Return the chat request that has the same answer, ``messages`` being the conversation."""
        shared = {name: getattr(self, name) for name in GenerationRequest.__struct_fields__}
        if self.text is not None and self.text.format is not None:
            shared["response_format"] = _response_format(self.text.format)
        given = self.tool_choice
        choice: ToolChoice | None = given.ours() if isinstance(given, NamedFunctionTool) else given
        return ChatCompletionRequest(
            **shared,
            messages=messages,
            tools=[
                tool.ours(f"tools[{index}]")
                for index, tool in enumerate(self.tools or ())
                if tool.type == "function"
            ]
            or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            max_completion_tokens=self.max_output_tokens,
            chat_template_kwargs=self.chat_template_kwargs,
            include_reasoning=self.include_reasoning,
            reasoning_effort=self.effort,
            enable_thinking=self.enable_thinking,
        )

    def read_input(
        self, takes_pictures: bool = False, kept: KeptItems = lambda item_id: None
    ) -> ResponseInput:
        """Return the input as messages.

        Args:
            takes_pictures: Whether the model reads pictures.
            kept: Function that finds items by their ids.

        Raises:
            RequestError: An item is of a kind that is not served, or malformed.
        """
        if self.input == "":
            raise refuse("input", "must not be empty", self.input)
        found = ResponseInput(takes_pictures, kept)
        if isinstance(self.input, str):
            found.messages.append(Message(role="user", content=self.input))
        else:
            found.read(self.input)
        if not found.messages:
            raise refuse("input", "must hold at least one item for the model", self.input)
        return found


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

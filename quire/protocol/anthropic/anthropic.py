"""``POST /v1/messages`` and ``/v1/messages/count_tokens`` on the wire: Anthropic's shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from quire.protocol.anthropic.anthropic_content import (
    TextBlock,
    Turn,
    is_billing_header,
    omitted_parts,
    to_messages,
)
from quire.protocol.compat import refuse
from quire.protocol.generation import Count, Seed
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.request_body import StreamableBody
from quire.protocol.speculative_fields import SpeculativeField
from quire.protocol.structured_output_fields import StructuredOutputsField
from quire.protocol.thinking import Thinking
from quire.protocol.tools import FunctionDefinition, NamedFunction, NamedTool, Tool, ToolChoice

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,128}$(?!\n)")]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
#: The edit that leaves everything as it is.
_KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}


class AnthropicTool(msgspec.Struct, kw_only=True):
    """A function that the client runs; a ``type`` of its own would mean one of Anthropic's."""

    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    #: Arguments always come as they are written.
    eager_input_streaming: bool | None = None

    def ours(self, where: str) -> Tool:
        """Return the tool in our form; ``where`` is its path.

        Raises:
            RequestError: The tool is one that only Anthropic runs or knows.
        """
        if self.type not in (None, "custom"):
            rule = "must be custom or absent: this server runs no tools and knows none of its own"
            raise refuse(f"{where}.type", rule, self.type)
        if self.input_schema is None:
            raise refuse(f"{where}.input_schema", "must be the schema of an object", None)
        function = FunctionDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )
        return Tool(function=function)


class AnthropicToolChoice(msgspec.Struct, kw_only=True):
    """``tool_choice``; ``name`` belongs to the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def ours(self) -> ToolChoice:
        """Return the choice in our form.

        Raises:
            RequestError: A tool is to be called and none is named.
        """
        if self.type == "tool":
            if self.name is None:
                raise refuse("tool_choice.name", "is needed by the type tool", None)
            return NamedTool(function=NamedFunction(name=self.name))
        return "required" if self.type == "any" else self.type


class OutputFormat(msgspec.Struct, kw_only=True):
    """A schema that the answer follows."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = msgspec.field(name="schema")


class OutputConfig(msgspec.Struct, kw_only=True):
    """``output_config``."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ContextManagement(msgspec.Struct, kw_only=True):
    """``context_management``: edits of the history; those that change nothing are honoured."""

    edits: list[dict[str, Any]] = msgspec.field(default_factory=list)


class AnthropicPrompt(StreamableBody, kw_only=True):
    """A prompt that is to be counted, or answered.

    ``cache_control`` and ``inference_geo`` change nothing: prefixes are always shared, here.
    """

    refused = {"container": (), "mcp_servers": ([],), "thread": ()}
    sent_names = {
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "chat_template_kwargs": "thinking",
        "reasoning_effort": "output_config.effort",
    }

    messages: list[Turn]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    cache_control: dict[str, Any] | None = None
    inference_geo: str | None = None

    @property
    def thinks(self) -> bool:
        """Whether the model is to think: only when it is asked to, as in Anthropic's API."""
        return self.thinking is not None and self.thinking.on

    @property
    def effort(self) -> Effort | None:
        """The effort that an answer is worth."""
        return None if self.output_config is None else self.output_config.effort

    @property
    def constraint_field(self) -> str | None:
        """The field that says what the output must look like; else the tools do."""
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format"
        return "tools" if self.output_format is None else "output_format"

    @property
    def num_blocks(self) -> int:
        """The number of texts and other blocks in the turns."""
        return sum(
            1 + (0 if isinstance(turn.content, str) else len(turn.content))
            for turn in self.messages
        )

    def efforts(self) -> list[tuple[str, str | bool]]:
        """Return ``output_config.effort``."""
        return [] if self.effort is None else [("output_config.effort", self.effort)]

    def without_effect(self) -> list[str]:
        """Return the paths of known fields that do nothing, whatever the model."""
        found = omitted_parts(self.messages)
        if isinstance(self.system, list):
            blocks = enumerate(self.system)
            found += [f"system[{index}]" for index, block in blocks if is_billing_header(block)]
        if self.thinking is not None and self.thinking.budget_tokens is not None:
            found.append("thinking.budget_tokens")
        if self.context_management is not None:
            edits = enumerate(self.context_management.edits)
            found += [f"context_management.edits[{i}]" for i, edit in edits if edit != _KEEP_ALL]
        return found

    def chat_request(self, takes_pictures: bool = False, **settings: Any) -> ChatCompletionRequest:
        """Return the chat request that has the same prompt.

        Args:
            takes_pictures: Whether the model reads pictures.
            **settings: More fields of it.

        Raises:
            RequestError: A turn or a tool is one that is not served; ``param`` gives its path.
        """
        messages, prefilled = to_messages(self.system, self.messages, takes_pictures)
        choice = self.tool_choice
        form = self.output_config.format if self.output_config is not None else None
        form = self.output_format if form is None else form
        tools = [tool.ours(f"tools[{i}]") for i, tool in enumerate(self.tools or ())]
        return ChatCompletionRequest(
            messages=messages,
            continue_final_message=prefilled or None,
            tools=tools or None,
            tool_choice=None if choice is None else choice.ours(),
            parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
            chat_template_kwargs={"enable_thinking": self.thinks, "thinking": self.thinks},
            reasoning_effort=self.effort,
            structured_outputs=None
            if form is None
            else StructuredOutputsField(json=form.json_schema),
            **settings,
        )


class AnthropicRequest(AnthropicPrompt, kw_only=True):
    """The request; see docs/anthropic.md for each field."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    seed: Seed | None = None
    speculative: SpeculativeField = None

    def chat_request(self, takes_pictures: bool = False, **settings: Any) -> ChatCompletionRequest:
        """Return the chat request that has the same answer; see :class:`AnthropicPrompt`."""
        return super().chat_request(
            takes_pictures,
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            speculative=self.speculative,
            stream=self.stream,
            **settings,
        )


class OutputTokensDetails(msgspec.Struct):
    """Counts of the output's tokens by kind."""

    thinking_tokens: int


class AnthropicUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Token counts; the prompt's length is the sum of the three that begin with it."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """The whole answer; ``tool_call_errors`` say why a call is left out."""

    id: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    tool_call_errors: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    """The answer of ``count_tokens``."""

    input_tokens: int


class AnthropicModel(msgspec.Struct, kw_only=True):
    """A served model; its limits are in tokens."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: dict[str, Any]
    type: Literal["model"] = "model"
    lifecycle: Literal["active"] = "active"


class AnthropicModelList(msgspec.Struct, kw_only=True):
    """A page of the served models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None

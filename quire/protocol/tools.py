"""Tools on the wire: what may be called, what was called, and what a request allows."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec

from quire.core.errors import RequestError
from quire.protocol.generation import GenerationRequest

#: OpenAI takes 128; Anthropic, Ollama and engines set no number, and agents send hundreds.
MAX_TOOLS = 1024
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]{1,64}$(?!\n)")]


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """``function`` of a tool; ``strict`` has its arguments follow the schema in full."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """One entry of ``tools``."""

    function: FunctionDefinition
    type: Literal["function"] = "function"

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}

    def check_parameters(self, index: int) -> None:
        """Refuse a schema whose values are not objects: arguments are one.

        Raises:
            RequestError: ``param`` names the place, this being tool ``index``.
        """
        kinds = (self.function.parameters or {}).get("type", "object")
        if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
            where = f"tools[{index}].function.parameters"
            raise RequestError(
                f"[{where}] must be the schema of an object; got type {kinds!r:.80}.", where
            )


class NamedFunction(msgspec.Struct, kw_only=True):
    """The function that must be called."""

    name: str


class AllowedTool(msgspec.Struct, kw_only=True):
    """A function that may be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, kw_only=True):
    """The functions that may be called, of those that the model is shown."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class NamedTool(msgspec.Struct, kw_only=True):
    """``tool_choice`` as an object: the function that must be called, or those that may be."""

    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    type: Literal["function", "allowed_tools"] = "function"

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ValueError(f"Object missing required field `{self.type}`")

    @property
    def names(self) -> dict[str, str]:
        """The functions' names, by their paths in the object."""
        if self.allowed_tools is None:
            return {} if self.function is None else {"function.name": self.function.name}
        return {
            f"allowed_tools.tools[{index}].function.name": tool.function.name
            for index, tool in enumerate(self.allowed_tools.tools)
        }


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(msgspec.Struct, kw_only=True):
    """``function`` of a call; ``arguments`` is JSON text, cut where the answer was.

    Of a history it may be the object itself, as Ollama's clients keep it, or null; it becomes text.
    """

    name: str
    arguments: str | dict[str, Any] | None = ""

    def __post_init__(self) -> None:
        if isinstance(self.arguments, dict):
            self.arguments = json.dumps(self.arguments, ensure_ascii=False)
        elif self.arguments is None:
            self.arguments = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call: of the history, or in an answer.

    Of a history that was joined from a stream, ``id`` and ``type`` may be null or empty.
    """

    function: CalledFunction
    id: str | None = ""
    type: Literal["function", ""] | None = "function"

    def __post_init__(self) -> None:
        self.id, self.type = self.id or "", self.type or "function"

    def for_template(self) -> dict[str, Any]:
        """Return the call as chat templates expect it, in the order that clients write."""
        known = {"id": self.id} if self.id else {}
        return known | {"type": self.type, "function": msgspec.structs.asdict(self.function)}


class ToolRequest(GenerationRequest, kw_only=True):
    """A generation request that may offer tools."""

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """The calls that are allowed: by default none without tools, and with them any or none.

        An object is a function that must be called.
        """
        chosen = self.tool_choice
        if chosen is None or not self.tools:
            return "auto" if self.tools else "none"
        if isinstance(chosen, NamedTool) and chosen.allowed_tools is not None:
            return chosen.allowed_tools.mode
        return chosen

    @property
    def allowed_tools(self) -> list[Tool]:
        """The tools that may be called."""
        if self.choice == "none":
            return []
        if isinstance(self.tool_choice, NamedTool):
            names = set(self.tool_choice.names.values())
            return [tool for tool in self.tools or [] if tool.function.name in names]
        return self.tools or []

    def check_tools(self) -> None:
        """Refuse tools that cannot be told apart, and a choice that allows none.

        Raises:
            RequestError: ``param`` names the field.
        """
        tools, choice = self.tools or [], self.tool_choice
        if len(tools) > MAX_TOOLS:
            raise RequestError(
                f"[tools] at most {MAX_TOOLS} may be sent; got {len(tools)}.", "tools"
            )
        names: set[str] = set()
        for index, tool in enumerate(tools):
            if tool.function.name in names:
                where = f"tools[{index}].function.name"
                raise RequestError(
                    f"[{where}] must differ from the others; got {tool.function.name!r} twice.",
                    where,
                )
            names.add(tool.function.name)
            tool.check_parameters(index)
        if not tools and choice not in (None, "none", "auto"):
            raise RequestError("[tool_choice] needs tools; got none.", "tool_choice")
        chosen = choice.names if isinstance(choice, NamedTool) and tools else {}
        for path, name in chosen.items():
            if name not in names:
                where = f"tool_choice.{path}"
                raise RequestError(f"[{where}] must be one of tools; got {name!r:.80}.", where)
        if self.choice == "required" and not self.allowed_tools:
            where = "tool_choice.allowed_tools.tools"
            raise RequestError(f"[{where}] must hold a function to call; got none.", where)

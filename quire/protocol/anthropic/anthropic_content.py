"""Turns and content blocks of Anthropic's Messages API, and the messages that they become."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from quire.core.errors import RequestError
from quire.protocol.compat import refuse
from quire.protocol.histories import OMITTED, SEPARATOR, with_systems_joined
from quire.protocol.openai.chat_completion import Message
from quire.protocol.tools import CalledFunction, ToolCall

#: Begins a block of the system prompt that an agent counts its own requests by. It changes with
#: every request, so that no prefix would be shared, and tells the model nothing.
BILLING_HEADER = "x-anthropic-billing-header:"


class _Block(msgspec.Struct, kw_only=True, tag_field="type"):
    """Prefixes are always shared, wherever ``cache_control`` stands."""

    cache_control: dict[str, Any] | None = None


class TextBlock(_Block, tag="text"):
    """Text; the sources that an earlier answer cited are not shown to the model."""

    text: str
    citations: list[Any] | None = None


class ImageBlock(_Block, tag="image"):
    """A picture, in base64 or with a URL, for models that read pictures."""

    source: dict[str, Any]


class DocumentBlock(_Block, tag="document"):
    """A document, which is served where its source is text."""

    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class SearchResultBlock(_Block, tag="search_result"):
    """Text with its origin."""

    source: str
    title: str
    content: list[TextBlock]
    citations: dict[str, Any] | None = None


class ThinkingBlock(_Block, tag="thinking"):
    """The model's thoughts; nothing here is signed, so any signature is right."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking"):
    """Thoughts that only another server could read; left out."""

    data: str = ""


class ToolUseBlock(_Block, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(_Block, tag="tool_result"):
    """The result of a call; the text itself says whether it is an error."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class SystemBlock(_Block, tag="mid_conv_system"):
    """A system prompt in the midst of a conversation."""

    content: list[TextBlock]


class ServerToolBlock(_Block, tag=False):
    """The trace of another server's tool in an answer; not shown to the model."""

    id: Any = None
    name: Any = None
    input: Any = None
    tool_use_id: Any = None
    content: Any = None
    is_error: Any = None
    server_name: Any = None
    caller: Any = None


class _ServerToolUse(ServerToolBlock, tag="server_tool_use"):
    pass


class _WebSearchToolResult(ServerToolBlock, tag="web_search_tool_result"):
    pass


class _WebFetchToolResult(ServerToolBlock, tag="web_fetch_tool_result"):
    pass


class _CodeExecutionToolResult(ServerToolBlock, tag="code_execution_tool_result"):
    pass


class _BashCodeExecutionToolResult(ServerToolBlock, tag="bash_code_execution_tool_result"):
    pass


class _TextEditorCodeExecutionToolResult(
    ServerToolBlock, tag="text_editor_code_execution_tool_result"
):
    pass


class _ToolSearchToolResult(ServerToolBlock, tag="tool_search_tool_result"):
    pass


class _McpToolUse(ServerToolBlock, tag="mcp_tool_use"):
    pass


class _McpToolResult(ServerToolBlock, tag="mcp_tool_result"):
    pass


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | SystemBlock
    | _ServerToolUse
    | _WebSearchToolResult
    | _WebFetchToolResult
    | _CodeExecutionToolResult
    | _BashCodeExecutionToolResult
    | _TextEditorCodeExecutionToolResult
    | _ToolSearchToolResult
    | _McpToolUse
    | _McpToolResult
)


class Turn(msgspec.Struct, kw_only=True):
    """One entry of ``messages``; a text is a block of it."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content


#: A part of our content.
Picture: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block and its path in the request."""

    block: Block
    where: str


def is_billing_header(block: TextBlock) -> bool:
    """Say whether a block of the system prompt is left out; see :data:`BILLING_HEADER`."""
    return block.text.startswith(BILLING_HEADER)


def to_messages(
    system: str | list[TextBlock] | None, turns: list[Turn], takes_pictures: bool = False
) -> tuple[list[Message], bool]:
    """Return the conversation as our messages, and whether the last one is to be gone on with.

    Turns of one role that follow each other are one. A result of a tool is a message of its own,
    before the text of its turn.

    Raises:
        RequestError: A block holds what is not served; ``param`` gives its path.
    """
    if isinstance(system, list):
        system = SEPARATOR.join(block.text for block in system if not is_billing_header(block))
    found = [Message(role="system", content=system)] if system else []
    for role, group in itertools.groupby(enumerate(turns), lambda item: item[1].role):
        placed = [
            _Placed(block, f"messages[{number}].content[{index}]")
            for number, turn in group
            for index, block in enumerate(turn.blocks)
        ]
        if role == "assistant":
            found.append(_assistant_message(placed))
        elif role == "system":
            found.append(_system_message(placed))
        else:
            found += _user_messages(placed, takes_pictures)
    messages = list(with_systems_joined(found))
    return messages, bool(turns) and turns[-1].role == "assistant" and _is_prefill(messages, turns)


def _is_prefill(messages: list[Message], turns: list[Turn]) -> bool:
    """Say whether an assistant's last message has text to continue; drop it if it is empty.

    Raises:
        RequestError: The message cannot be continued.
    """
    last, where = messages[-1], f"messages[{len(turns) - 1}].content"
    if last.tool_calls:
        raise refuse(where, "must not end with a tool_use that has no tool_result", "tool_use")
    if last.content:
        return True
    if last.reasoning:
        raise refuse(where, "must have text to go on with", "thinking only")
    messages.pop()
    return False


def _assistant_message(placed: Iterable[_Placed]) -> Message:
    texts, thoughts, calls = [], [], []
    for item in placed:
        match item.block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=text):
                thoughts.append(text)
            case RedactedThinkingBlock() | ServerToolBlock():
                pass
            case ToolUseBlock(id=call_id, name=name, input=given):
                arguments = msgspec.json.encode(given).decode()
                function = CalledFunction(name=name, arguments=arguments)
                calls.append(ToolCall(id=call_id, function=function))
            case _:
                raise _not_of(item, "assistant")
    content = "".join(texts)
    return Message(
        role="assistant",
        content=content if content or not calls else None,
        reasoning="".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _user_messages(placed: Iterable[_Placed], takes_pictures: bool) -> list[Message]:
    """Return the results of tools, then the text, with system prompts where they stand in it."""
    results: list[Message] = []
    others: list[Message] = []
    texts: list[str | Picture] = []
    for item in placed:
        match item.block:
            case ImageBlock(source=source) if takes_pictures:
                texts.append(_picture(source, f"{item.where}.source"))
            case ToolResultBlock(tool_use_id=call_id, content=content):
                text, _ = result_text(content, f"{item.where}.content")
                results.append(Message(role="tool", content=text, tool_call_id=call_id))
            case SystemBlock():
                others += _with_pictures(texts)
                texts = []
                others.append(_system_message([item]))
            case _:
                texts.append(_text(item))
    others += _with_pictures(texts)
    return results + others or [Message(role="user", content="")]


def _with_pictures(parts: list[str | Picture]) -> list[Message]:
    """Return a user's message, a text where it has no picture."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return _joined("user", texts)
    content: list[dict[str, Any]] = []
    for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            content.append({"type": "text", "text": SEPARATOR.join(map(str, group))})
        else:
            content += [dict(part) for part in group if not isinstance(part, str)]
    return [Message(role="user", content=content)]


def _picture(source: dict[str, Any], where: str) -> Picture:
    """Return the source of a picture as a part of our content."""
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(found)}:
            url = found
        case _:
            rule = "must be base64 with media_type and data, or a url"
            raise refuse(where, rule, source.get("type"))
    return {"type": "image_url", "image_url": {"url": url}}


def _joined(role: Literal["user", "system"], texts: list[str]) -> list[Message]:
    return [Message(role=role, content=SEPARATOR.join(texts))] if texts else []


def _system_message(placed: Iterable[_Placed]) -> Message:
    texts = []
    for item in placed:
        match item.block:
            case TextBlock(text=text):
                texts.append(text)
            case SystemBlock(content=content):
                texts += [block.text for block in content]
            case _:
                raise _not_of(item, "system")
    return Message(role="system", content=SEPARATOR.join(texts))


def _text(item: _Placed) -> str:
    """Return the text of a block of a user's turn."""
    block, where = item.block, item.where
    match block:
        case TextBlock(text=text):
            return text
        case DocumentBlock() | SearchResultBlock() if (block.citations or {}).get("enabled"):
            raise refuse(f"{where}.citations", "must not be enabled: none are made", True)
        case DocumentBlock():
            data = _source_text(block.source)
            if data is None:
                rule = "must be text: this model reads nothing else"
                raise refuse(f"{where}.source", rule, block.source.get("type"))
            return SEPARATOR.join(filter(None, (block.title, block.context, data)))
        case SearchResultBlock(source=source, title=title, content=content):
            return SEPARATOR.join((title, source, *(part.text for part in content)))
        case ImageBlock():
            raise refuse(f"{where}.type", "must not be image: this model reads text only", "image")
    raise _not_of(item, "user")


def _source_text(source: dict[str, Any]) -> str | None:
    """Return the text of a document's source; None when it is something else."""
    match source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": list(parts)}:
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
                return SEPARATOR.join(map(str, texts))
    return None


def result_text(content: str | list[dict[str, Any]] | None, where: str) -> tuple[str, list[int]]:
    """Return a tool's result as text, and the places of the parts that only a note stands for.

    An image there would be sent again in every later turn: refusing it would end the conversation.

    Raises:
        RequestError: A text is none.
    """
    if content is None or isinstance(content, str):
        return content or "", []
    texts, omitted = [], []
    for index, part in enumerate(content):
        kind, text = part.get("type"), part.get("text")
        if kind == "document" and isinstance(part.get("source"), dict):
            text = _source_text(part["source"])
        elif kind == "search_result":
            found = part.get("content")
            text = _source_text({"type": "content", "content": found})
        elif kind == "text" and not isinstance(text, str):
            raise refuse(f"{where}[{index}].text", "must be text", text)
        elif kind != "text":
            text = None
        if text is None:
            omitted.append(index)
            text = OMITTED.format(kind=kind if isinstance(kind, str) else "part")
        texts.append(text)
    return SEPARATOR.join(texts), omitted


def omitted_parts(turns: list[Turn]) -> list[str]:
    """Return the paths of what is left out, and of parts that only a note stands for."""
    found = []
    for number, turn in enumerate(turns):
        for index, block in enumerate(turn.blocks):
            if isinstance(block, ServerToolBlock):
                found.append(f"messages[{number}].content[{index}]")
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                where = f"messages[{number}].content[{index}].content"
                _, omitted = result_text(block.content, where)
                found += [f"{where}[{place}]" for place in omitted]
    return found


def _not_of(item: _Placed, role: str) -> RequestError:
    kind = type(item.block).__struct_config__.tag
    return refuse(f"{item.where}.type", f"must be one that a turn of the {role} may hold", kind)

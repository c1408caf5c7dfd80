"""The reading of a model's answers: marks that its template writes, and a parser per answer."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.core.errors import ConfigError, RequestError
from quire.core.suggestions import did_you_mean
from quire.server.server_options import ServerOptions
from quire.text import tool_parsers
from quire.text.reasoning_parsers import reasoning as reasoning_formats
from quire.text.reasoning_parsers.reasoning import ReasoningFormat
from quire.text.templates.chat_template import ChatTemplate
from quire.text.tool_parsers.interface import CallDelta, Parsed
from quire.text.tool_parsers.parser import Schemas

#: Forced where a model's own format is not known: it needs no special tokens.
DEFAULT_FORMAT = "hermes"


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of one served model.

    Attributes:
        tool_parser: Name of the format of its tool calls; None when it is not known.
        reasoning: The marks of its reasoning; None when it has none.
        auto_tools: Whether the model may choose to call tools.
        shows_tools: Whether its chat template tells it of tools.
    """

    tool_parser: str | None
    reasoning: ReasoningFormat | None
    auto_tools: bool
    shows_tools: bool

    @classmethod
    def resolve(cls, options: ServerOptions, template: ChatTemplate | None) -> AnswerFormats:
        """Read the flags; what they leave open is looked for in the chat template.

        Raises:
            ConfigError: A flag names no format.
        """
        sources = [] if template is None else list(template.templates.values())
        tools = _named(
            "--tool-call-parser",
            options.tool_call_parser,
            tool_parsers.PARSERS,
            tool_parsers.ALIASES,
        )
        if options.tool_call_parser == "auto":
            tools = tool_parsers.detect_parser(sources)
        reasoning = _named(
            "--reasoning-parser",
            options.reasoning_parser,
            reasoning_formats.FORMATS,
            reasoning_formats.ALIASES,
        )
        if options.reasoning_parser == "auto":
            reasoning = reasoning_formats.detect_reasoning(sources)
        return cls(
            tools,
            None if reasoning is None else reasoning_formats.FORMATS[reasoning],
            options.enable_auto_tool_choice,
            template is not None and template.shows_tools,
        )

    def check_auto(self) -> None:
        """Refuse to leave the choice to the model where its calls could not be recognised.

        Raises:
            RequestError: ``param`` is ``tool_choice``.
        """
        if not self.auto_tools:
            raise RequestError(
                '[tool_choice] "auto" is turned off on this server (--no-enable-auto-tool-choice). '
                'Send "required", "none" or a function.',
                "tool_choice",
            )
        if self.tool_parser is None:
            raise RequestError(
                '[tool_choice] "auto" needs to know how this model writes tool calls; its chat '
                f"template does not say. Start the server with --tool-call-parser "
                f'({", ".join(tool_parsers.PARSERS)}), or send "required", "none" or a function.',
                "tool_choice",
            )


def _named(
    flag: str, name: str, known: Mapping[str, object], aliases: Mapping[str, str]
) -> str | None:
    if name in ("auto", "none"):
        return None
    if name not in known and name not in aliases:
        names = ", ".join([*known, *aliases])
        raise ConfigError(
            f"[config] {flag} must be auto, none or one of {names}; got {name}."
            f"{did_you_mean(name, [*known, *aliases])}"
        )
    return aliases.get(name, name)


def call_id(parser: str | None, prefix: str = "call_") -> str:
    """Return a fresh id; Mistral's templates take nine letters and digits only."""
    digits = uuid.uuid4().hex
    return digits[:9] if parser == "mistral" else f"{prefix}{digits[:24]}"


def arguments_error(index: int, reason: str) -> str:
    """Return the message about a call that cannot be made."""
    return f"[tool_calls[{index}].function.arguments] must be a JSON object; {reason}."


@dataclass(slots=True)
class ParsedAnswer:
    """The reasoning, content and tool calls in a piece of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class AnswerParser:
    """Reads one answer: reasoning first, then content and tool calls.

    Args:
        reasoning: Marks of the reasoning; None when it is not looked for.
        is_open: Whether the prompt opened the reasoning.
        tool_parser: Format of the calls; None when they are not looked for.
        forced: Whether a grammar lets nothing but calls follow the reasoning.
        schemas: Schemas of the functions' parameters, by name.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        is_open: bool,
        tool_parser: str | None,
        forced: bool = False,
        schemas: Schemas | None = None,
    ) -> None:
        self._forced = forced
        self._splitter = None if reasoning is None else reasoning.create_splitter(is_open)
        self._tools = None if tool_parser is None else tool_parsers.PARSERS[tool_parser](schemas)
        self.num_calls = 0

    @property
    def plain(self) -> bool:
        """Whether all text is content."""
        return self._splitter is None and self._tools is None

    @property
    def errors(self) -> list[str]:
        """Messages about what is wrong with the calls read so far."""
        found = [] if self._tools is None else self._tools.errors
        return [arguments_error(index, reason) for index, reason in found]

    @property
    def broken(self) -> set[int]:
        """Indices of the calls that cannot be made."""
        return set() if self._tools is None else {index for index, _ in self._tools.errors}

    def read(self, text: str, final: bool) -> ParsedAnswer:
        """Take the next piece, the answer's last when ``final``, and return what is certain."""
        answer = ParsedAnswer(content=text)
        if self._splitter is not None:
            answer.reasoning, answer.content = self._splitter.add(text)
            if final:
                reasoning, content = self._splitter.flush()
                answer.reasoning += reasoning
                answer.content += content
        if self._tools is not None:
            parsed: Parsed = self._tools.add(answer.content)
            if final:
                parsed.join(self._tools.flush())
            answer.content, answer.calls = parsed.content, parsed.calls
            if self._forced:  # part of a call whose end was cut off
                answer.content = ""
            self.num_calls += sum(call.name is not None for call in parsed.calls)
        return answer

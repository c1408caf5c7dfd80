"""Tools of a chat request, as they affect its prompt, its grammar and the reading of answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.protocol.openai.chat_completion import ChatCompletionRequest
from quire.protocol.tools import NamedTool, Tool
from quire.server.generation.answer_parser import DEFAULT_FORMAT, AnswerFormats, AnswerParser
from quire.server.generation.service import Service
from quire.text.grammars.tool_grammar import Function, forced_calls, free_calls
from quire.text.tokenizers.tokenizer import Tokenizer
from quire.text.tool_parsers import PARSERS

#: Tokens at the prompt's end that may open or close the reasoning.
TAIL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that one request may call.

    Attributes:
        prompted: Tools that the prompt shows; None for none.
        allowed: Tools that may be called.
        forced: Whether the model must call a tool.
        parallel: Whether one answer may have several calls.
        parser: Format of the calls; None when there can be none.
    """

    prompted: list[Tool] | None
    allowed: list[Tool]
    forced: bool
    parallel: bool
    parser: str | None

    @classmethod
    def create(cls, body: ChatCompletionRequest, service: Service) -> ToolUse:
        """Read a request.

        Raises:
            RequestError: The prompt cannot show tools, or the model's calls cannot be recognised.
        """
        allowed, formats = body.allowed_tools, service.formats
        if not allowed:
            exclude = service.options.exclude_tools_when_tool_choice_none
            shown = body.tools if formats.shows_tools and not exclude else None
            return cls(shown or None, [], False, False, None)
        named = isinstance(body.choice, NamedTool)
        forced = named or body.choice == "required"
        if not (formats.shows_tools or forced):
            raise RequestError(
                "[tools] this model's chat template does not show tools to the model. Leave them "
                'out, force a call (tool_choice "required" or a function), or start the server '
                "with --chat-template and a template that does.",
                "tools",
            )
        parser = formats.tool_parser
        if body.choice == "auto":
            formats.check_auto()
        return cls(
            body.tools,
            allowed,
            forced,
            body.parallel_tool_calls is not False and not named,
            parser or DEFAULT_FORMAT,
        )

    def constraint(
        self, asked: StructuredOutputs | None, tokenizer: Tokenizer
    ) -> StructuredOutputs | None:
        """Return what the answer must look like, given what the request asked for besides tools.

        Raises:
            RequestError: The schema of a strict function cannot be enforced.
        """
        if self.parser is None:
            return asked
        functions = [
            Function(tool.function.name, tool.function.parameters or {}, bool(tool.function.strict))
            for tool in self.allowed
        ]
        if self.forced or asked is not None:
            calls = forced_calls(self.parser, functions, self.parallel, tokenizer)
            if self.forced:
                return StructuredOutputs(grammar=calls)
            return None if asked is None else replace(asked, or_grammar=calls)
        all_may_be = self.prompted is not None and len(self.allowed) == len(self.prompted)
        if self.parallel and all_may_be and not any(function.strict for function in functions):
            return None
        return StructuredOutputs(
            grammar=free_calls(self.parser, functions, self.parallel, tokenizer)
        )


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """The rules by which the answers of one request are read.

    Attributes:
        formats: Formats of the model's answers.
        tool_use: The tools that may be called.
        tokenizer: The served model's tokenizer.
        is_open: Whether the prompt opened the reasoning.
        skip_special_tokens: Whether special tokens are left out of the text.
    """

    formats: AnswerFormats
    tool_use: ToolUse
    tokenizer: Tokenizer
    is_open: bool
    skip_special_tokens: bool

    @classmethod
    def create(
        cls, body: ChatCompletionRequest, service: Service, tool_use: ToolUse, prompt: list[int]
    ) -> AnswerReading:
        """Return the rules for reading the answers to ``prompt``, in token ids."""
        formats, tokenizer = service.formats, service.engine.tokenizer
        form, last = formats.reasoning, body.messages[-1].content
        is_open = False
        if form is not None and body.continues_last and isinstance(last, str) and last:
            is_open = form.is_left_open_by(last)
        elif form is not None:
            is_open = form.begins_open(tokenizer.decode(prompt[-TAIL_TOKENS:], False))
        return cls(formats, tool_use, tokenizer, is_open, body.skip_special_tokens is not False)

    @property
    def tool_parser(self) -> str | None:
        """Format of the calls; None when they are not looked for."""
        return self.tool_use.parser

    def sampling_settings(self, asked: StructuredOutputs | None) -> dict[str, Any]:
        """Return the sampling settings that reading an answer needs.

        Args:
            asked: The request's constraint on the answer, besides tool calls.

        Raises:
            RequestError: The schema of a strict function cannot be enforced.
        """
        tokenizer, form = self.tokenizer, self.formats.reasoning
        if asked is not None and form is not None:
            asked = form.begin_answer(asked, tokenizer)
        constraint = self.tool_use.constraint(asked, tokenizer)
        if constraint is not None and form is not None:
            constraint = form.follow_reasoning(constraint, self.is_open)
        settings: dict[str, Any] = {"structured_outputs": constraint}
        if self._shows_marks:
            settings["skip_special_tokens"] = False
        return settings

    @property
    def _shows_marks(self) -> bool:
        """Whether marks that are read are special tokens, so that the text must have these."""
        marks: tuple[str, ...] = ()
        if self.tool_parser is not None:
            marks += PARSERS[self.tool_parser].marks
        if self.formats.reasoning is not None:
            marks += self.formats.reasoning.marks
        ids = map(self.tokenizer.token_to_id, marks)
        return any(token_id is not None and self.tokenizer.is_special(token_id) for token_id in ids)

    def create_parser(self) -> AnswerParser:
        """Return a parser for one answer."""
        schemas = {
            tool.function.name: tool.function.parameters or {} for tool in self.tool_use.allowed
        }
        return AnswerParser(
            self.formats.reasoning, self.is_open, self.tool_parser, self.tool_use.forced, schemas
        )

    def count_reasoning_tokens(self, answers: Iterable[list[int]]) -> int | None:
        """Return how many tokens of the answers are reasoning; None when it is not looked for."""
        form = self.formats.reasoning
        if form is None:
            return None
        skip = self.skip_special_tokens and not self._shows_marks
        return sum(
            form.count_tokens(
                self.is_open,
                self.tokenizer.create_detokenizer(skip_special_tokens=skip, continues=True),
                token_ids,
            )
            for token_ids in answers
        )

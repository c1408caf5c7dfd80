"""Constraints on a request's output, and the matchers by which the runner follows them.

Grammars themselves are compiled in ``quire.text``.
"""

from __future__ import annotations

import json as json_library
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Protocol

from quire.core.errors import FailureKind, InvalidSamplingParamsError, RequestFailure

#: Longest constraint, in characters.
MAX_CONSTRAINT_LENGTH = 256 * 1024
_KINDS: dict[str, tuple[type, ...]] = {
    "json": (str, dict),
    "regex": (str,),
    "choice": (list, tuple),
    "grammar": (str,),
    "json_object": (bool,),
}
#: vLLM's settings that would change the text, and those that choose a program.
_NOT_SERVED = ("disable_additional_properties", "whitespace_pattern", "structural_tag")
_NO_EFFECT = ("backend", "disable_fallback")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """One constraint on a request's text, in vLLM's names; exactly one of the first five is given.

    Args:
        json: A JSON Schema, as an object or as its text; kept as text.
        regex: A regular expression (Rust's syntax) that the whole text matches.
        choice: Texts, one of which is the output.
        grammar: A context-free grammar in Lark's form, or in GBNF (rules with ``::=``).
        json_object: True for any JSON object.
        disable_any_whitespace: Whether JSON must have no white space between its parts.
        before: A grammar in Lark's form that the beginning of the text matches.
        or_grammar: A grammar in Lark's form that the text may follow instead of all that.
        reasoning_end: Mark up to which free text comes first, the mark included.
        reasoning_start: Mark that the output must begin with for that free text to come.
        backend, disable_fallback: vLLM's choice of a program; changes nothing.
        disable_additional_properties, whitespace_pattern, structural_tag: vLLM's settings that are
            not served: None, or false.

    Raises:
        InvalidSamplingParamsError: None or several are given, or one is empty or too long.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    before: str = ""
    or_grammar: str = ""
    reasoning_end: str = ""
    reasoning_start: str = ""
    backend: str | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        for name in _NOT_SERVED:
            value = getattr(self, name)
            if value not in (None, False):
                _refuse(f"{name} is not supported; got {value!r:.80}. Leave it out.")
        for name in (*_NOT_SERVED, *_NO_EFFECT):
            object.__setattr__(self, name, None)
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(_KINDS)
            _refuse(f"exactly one of {names} must be given; got {', '.join(given) or 'none'}.")
        if self.disable_any_whitespace and not self.is_json:
            _refuse(f"disable_any_whitespace belongs to json and json_object; got {given[0]}.")
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                _refuse(f"{name} has the wrong type; got {value!r:.80}.")
        if isinstance(self.json, dict):
            try:
                text = json_library.dumps(self.json, ensure_ascii=False, separators=(",", ":"))
            except (TypeError, ValueError, RecursionError) as error:
                _refuse(f"json must be a JSON Schema; got {error}.")
            object.__setattr__(self, "json", text)
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
            if not all(isinstance(text, str) and text for text in self.choice):
                _refuse("choice must hold texts that are not empty.")
        length = len(self.key)
        if length > MAX_CONSTRAINT_LENGTH:
            _refuse(f"{given[0]} may have {MAX_CONSTRAINT_LENGTH} characters; got {length}.")
        if not self.json_object and not self.constraint:
            _refuse(f"{given[0]} must not be empty.")

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON."""
        return self.kind in ("json", "json_object")

    @property
    def constraint(self) -> Any:
        """The value of the field that is given."""
        return getattr(self, self.kind)

    @property
    def key(self) -> str:
        """Return a text that is equal for equal constraints only."""
        value = self.constraint
        text = f"{self.kind}:{value if isinstance(value, str) else json_library.dumps(value)}"
        around = (
            self.before,
            self.or_grammar,
            self.reasoning_end,
            self.reasoning_start,
            self.disable_any_whitespace,
        )
        return f"{text}\0{json_library.dumps(around)}" if any(around) else text


class TokenMatcher(Protocol):
    """A grammar that follows one sequence."""

    @property
    def num_taken(self) -> int:
        """Output tokens that it has been given, those it refused included."""
        ...

    def allowed(self, new_ids: list[int]) -> bytes:
        """Follow further tokens of a sequence's output and return which may come next.

        Args:
            new_ids: The output's tokens from :attr:`num_taken` on; may be empty.

        Returns:
            One bit per token id, lowest bit first; all 0 when there is an :attr:`error`.
        """
        ...

    def fail(self, failure: RequestFailure) -> None:
        """Allow nothing any more; ``failure`` is :attr:`error` from now on."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens it was given, and that it refused one of them.

        A limit that computing the allowed tokens ran into stays: the request has to fail.
        """
        ...

    @property
    def error(self) -> RequestFailure | None:
        """The request's failure when the grammar could not go on; None while it can."""
        ...


class GrammarSource(Protocol):
    """The source of the runner's matchers."""

    def create_matcher(self, constraint: StructuredOutputs) -> TokenMatcher:
        """Return a matcher at the start of the output."""
        ...


def grammar_limit(rule: str) -> RequestFailure:
    """Return the failure of a request whose grammar breaks a rule after some tokens."""
    message = f"[structured_outputs] the grammar must {rule}"
    return RequestFailure(FailureKind.GRAMMAR_LIMIT, message, "structured_outputs")


def library_failure(error: BaseException) -> RequestFailure:
    """Return the failure of a request on whose grammar the library has failed."""
    message = f"[structured_outputs] the grammar's library failed: {error!r}."
    return RequestFailure(FailureKind.ENGINE, message)


def read_structured_outputs(value: Any) -> StructuredOutputs:
    """Return a constraint that a caller gives as such, as a dict of its fields or as a class.

    Raises:
        InvalidSamplingParamsError: The value is none of these.
    """
    if isinstance(value, StructuredOutputs):
        return value
    schema = getattr(value, "model_json_schema", None)  # a class of pydantic
    if isinstance(value, type) and schema is not None:
        return StructuredOutputs(json=schema())
    if isinstance(value, dict) and value.keys() <= {one.name for one in fields(StructuredOutputs)}:
        return StructuredOutputs(**value)
    _refuse(
        f"must be StructuredOutputs, a dict of its fields or a class of pydantic; got "
        f'{value!r:.80}. Write StructuredOutputs(json=schema) or {{"json": schema}}.'
    )


def _refuse(rule: str) -> NoReturn:
    raise InvalidSamplingParamsError(f"[structured_outputs] {rule}", "structured_outputs")

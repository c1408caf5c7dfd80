"""Compiles constraints on a model's text and follows sequences through them; draws no tokens.

The automata are llguidance's. Matching is on the tokens' exact bytes, so any tokenizer serves.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from quire.core.errors import FailureKind, RequestError, RequestFailure
from quire.core.metrics import COMPILATION_BUCKETS, HistogramCounts, Samples
from quire.core.structured_outputs import StructuredOutputs, grammar_limit
from quire.text.grammars.gbnf import to_lark
from quire.text.grammars.grammar_marks import escaped
from quire.text.grammars.grammar_vocabulary import GrammarVocabulary
from quire.text.grammars.json_schema import OPEN_ESCAPE, check_schema, ends_in_escape
from quire.text.grammars.schema_forms import enforceable_form
from quire.text.tokenizers.tokenizer import Tokenizer

#: Compiled grammars kept.
MAX_CACHED = 128
#: A space, or a new line and its indentation: a model that likes spaces must come to an end.
WHITESPACE = r"( |\n( {0,16}|\t{0,4}))?"
#: About 20 ms for the lexer, and 15 ms for a token; beyond it the request fails.
LIMITS = LLParserLimits(max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False)
#: What a grammar must allow, and what one does that leaves nothing else.
UNWRITABLE = "what this model's tokens can write; got text with characters that none of them has"


class SequenceMatcher:
    """A grammar's place in one sequence; a :class:`~quire.core.structured_outputs.TokenMatcher`."""

    def __init__(self, matcher: LLMatcher, mask: bytes, unwritable: bytes = b"") -> None:
        self._matcher = matcher
        self._unwritable = unwritable  # the mask that stands for text that no tokens can write
        self._mask_bytes = len(mask)
        self._mask: bytes | None = mask
        self._num_refused = 0  # the first token that does not follow, and what came after it
        self._failure: RequestFailure | None = None
        self.num_taken = 0

    def allowed(self, new_ids: list[int]) -> bytes:
        """Follow tokens after :attr:`num_taken` and return which may come next, a bit per id."""
        if self._failure:
            self.num_taken += len(new_ids)
            self._mask = bytes(self._mask_bytes)
        elif self._mask is None or new_ids:
            # Unlike consume_tokens, this leaves the matcher whole when a token does not follow.
            num_followed = 0
            if not self._num_refused:
                num_followed = self._matcher.try_consume_tokens(new_ids)
            self._num_refused += len(new_ids) - num_followed
            self.num_taken += len(new_ids)
            mask = b"" if self._num_refused else self._matcher.compute_bitmask()
            if self._matcher.is_error():  # computing may run into a limit
                mask = b""
            self._mask = mask[: self._mask_bytes].ljust(self._mask_bytes, b"\0")
            if self._mask == self._unwritable:
                self.fail(grammar_limit(f"allow {UNWRITABLE}."))
                self._mask = bytes(self._mask_bytes)
        return self._mask

    def fail(self, failure: RequestFailure) -> None:
        """Allow nothing any more."""
        self._failure = failure

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens; it costs about as little as following them did."""
        if not num_tokens:
            return
        assert num_tokens <= self.num_taken, f"rollback of {num_tokens} of {self.num_taken} tokens"
        num_refused = min(num_tokens, self._num_refused)
        self._num_refused -= num_refused
        self.num_taken -= num_tokens
        self._mask = None
        if num_tokens > num_refused and not self._failure:
            self._matcher.rollback(num_tokens - num_refused)

    @property
    def error(self) -> RequestFailure | None:
        """The request's failure when the matcher has stopped; None while it runs."""
        if self._failure:
            return self._failure
        if self._matcher.is_error():
            error = _one_line(self._matcher.get_error())
            return grammar_limit(f"stay within the limits of a token; got {error}. Simplify it.")
        if self._num_refused:
            return RequestFailure(
                FailureKind.ENGINE,
                "[structured_outputs] a token must follow the ones before it; the grammar forbids "
                "the last one.",
            )
        return None


class GrammarCompiler:
    """Compiles the constraints of one model's requests; any thread may call it.

    Args:
        tokenizer: The model's tokenizer.
        eos_token_ids: Ids that end a sequence, allowed where the grammar may end.
        vocab_size: Length of the model's logits; ids that the tokenizer does not have are never
            allowed.

    Attributes:
        compilation_time: Seconds of each constraint compiled; those found in the cache are not
            counted.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self._source = tokenizer
        self._eos_token_ids = list(eos_token_ids)
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._unwritable_id: int | None = None
        self._cache: OrderedDict[bytes, tuple[LLMatcher, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.compilation_time = HistogramCounts(COMPILATION_BUCKETS)

    def compile(self, constraint: StructuredOutputs, possible: bytes = b"") -> None:
        """Check and compile a constraint, so that :meth:`create_matcher` has it at once.

        Args:
            constraint: The constraint that a request asks for.
            possible: The same as in :func:`check_beginning`.

        Raises:
            RequestError: The constraint cannot be enforced, is not a grammar, or takes too much.
        """
        _, mask = self._compiled(constraint)
        check_beginning(mask, constraint.kind, possible)

    def create_matcher(self, constraint: StructuredOutputs) -> SequenceMatcher:
        """Return a matcher at the start of the output; errors as of :meth:`compile`."""
        matcher, mask = self._compiled(constraint)
        num_bytes = (self._vocab_size + 31) // 32 * 4
        mask = mask[:num_bytes].ljust(num_bytes, b"\0")
        unwritable = b""
        if self._unwritable_id is not None:
            unwritable = (1 << self._unwritable_id).to_bytes(num_bytes, "little")
        return SequenceMatcher(matcher.deep_copy(), mask, unwritable)

    def vocabulary(self) -> GrammarVocabulary:
        """Return what grammars need of the tokenizer.

        Raises:
            RequestError: The model has no end-of-sequence token.
        """
        if not self._eos_token_ids:
            raise _refusal("this model has no end-of-sequence token, so nothing could end it")
        source, size = self._source, self._vocab_size
        return GrammarVocabulary(
            [source.token_bytes(token_id) for token_id in range(size)],
            sorted(i for i in source.pieces.special_ids if i < size),
            source.bos_token_id,
            self._eos_token_ids,
            partial(source.encode, add_special_tokens=False),
        )

    def knows(self, constraint: StructuredOutputs) -> bool:
        """Return whether a constraint is compiled already."""
        key = sha256(constraint.key.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            return key in self._cache

    def stats(self) -> Samples:
        """Return what was compiled, by metric stem."""
        return {"grammar_compilation_time_seconds": self.compilation_time.state()}

    def _compiled(self, constraint: StructuredOutputs) -> tuple[LLMatcher, bytes]:
        key = sha256(constraint.key.encode("utf-8", "surrogatepass")).digest()
        # Held for moments only: the engine must not wait while another thread compiles.
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        start = time.perf_counter()
        compiled = self._compile(constraint)
        with self._lock:
            self.compilation_time.observe(time.perf_counter() - start)
            self._cache[key] = compiled
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def _compile(self, constraint: StructuredOutputs) -> tuple[LLMatcher, bytes]:
        """Return a matcher at the start and what may begin."""
        grammar = grammar_of(constraint)
        if self._tokenizer is None:
            vocabulary = self.vocabulary()
            self._unwritable_id = vocabulary.unwritable_id
            self._tokenizer = vocabulary.create_tokenizer()
        matcher = create_start(self._tokenizer, constraint.kind, grammar)
        return matcher, first_mask(matcher, constraint.kind, self._unwritable_id)


def create_start(tokenizer: LLTokenizer, kind: str, grammar: str) -> LLMatcher:
    """Compile llguidance's form of a constraint.

    Args:
        tokenizer: The result of :meth:`GrammarVocabulary.create_tokenizer`.
        kind: The field that asked, for messages.
        grammar: The result of :func:`grammar_of`.

    Raises:
        RequestError: The text is not a grammar, or is beyond :data:`LIMITS`. A cost that these do
            not see may take any time and memory, and more stack than there is.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    check_limits(matcher, kind)
    return matcher


def first_mask(matcher: LLMatcher, kind: str, unwritable_id: int | None) -> bytes:
    """Return the tokens that may begin an output, a bit per id.

    Args:
        matcher: The result of :func:`create_start`.
        kind: The field that asked, for messages.
        unwritable_id: The vocabulary's id for text that no tokens can write; None for none.

    Raises:
        RequestError: No token may begin one, or the grammar is beyond :data:`LIMITS`.
    """
    mask: bytes = matcher.compute_bitmask()
    check_limits(matcher, kind)
    if not any(mask):
        raise _refusal(f"{kind} must allow some output; no token can begin it")
    check_writable(int.from_bytes(mask, "little"), kind, unwritable_id)
    return mask


def check_beginning(mask: bytes, kind: str, possible: bytes) -> None:
    """Refuse a grammar that no token can begin which the request's other settings leave.

    Args:
        mask: The result of :func:`first_mask`.
        kind: The field that asked, for messages.
        possible: Tokens that the settings leave, a bit per id; nothing where they leave all.

    Raises:
        RequestError: No token that the settings leave can begin the grammar.
    """
    if possible and not int.from_bytes(mask, "little") & int.from_bytes(possible, "little"):
        raise RequestError(
            f"[structured_outputs] {kind} must begin with a token that the request allows; "
            "allowed_token_ids, bad_words and logit_bias leave none of those that can begin it. "
            "Leave these out.",
            "structured_outputs",
        )


def check_writable(mask: int, kind: str, unwritable_id: int | None) -> None:
    """Refuse a mask that stands for text that no tokens can write.

    Raises:
        RequestError: The mask stands for such text.
    """
    if unwritable_id is not None and mask == 1 << unwritable_id:
        raise _refusal(f"{kind} must allow {UNWRITABLE}")


def check_limits(matcher: LLMatcher, kind: str) -> None:
    """Refuse a grammar that has made a matcher stop.

    Raises:
        RequestError: The matcher has stopped.
    """
    if matcher.is_error():
        raise _refusal(f"{kind} cannot be enforced ({_one_line(matcher.get_error())})")


def grammar_of(constraint: StructuredOutputs) -> str:
    """Return llguidance's own form of a constraint, with what may stand around or instead of it.

    Raises:
        RequestError: The constraint is not JSON, or has a keyword that cannot be enforced.
    """
    try:
        return _grammar(constraint)
    except RequestError:
        raise
    except ValueError as error:
        raise _refusal(f"{constraint.kind} must be JSON ({_one_line(str(error))})") from error


def _grammar(constraint: StructuredOutputs) -> str:
    grammar = _of_kind(constraint)
    if constraint.before:
        grammar = _composed("start: @head @body", {"head": constraint.before, "body": grammar})
    if constraint.or_grammar:
        parts = {"one": grammar, "two": constraint.or_grammar}
        grammar = _composed("start: @one | @two", parts)
    if constraint.reasoning_end:
        # Lazily, so that it ends with the first mark.
        head = f"/[ \\n]*{escaped(constraint.reasoning_start)}"
        if not constraint.reasoning_start:
            head = "/"
        thinking = f"think[lazy]: {head}(.|\\n)*{escaped(constraint.reasoning_end)}/"
        start = "(think SPACE)?" if constraint.reasoning_start else "think SPACE"
        rules = f"start: {start} @one\n{thinking}\nSPACE: /[ \\n]*/"
        grammar = _composed(rules, {"one": grammar})
    return grammar


def _composed(rules: str, parts: dict[str, str]) -> str:
    """Join grammars, which ``rules`` calls by ``@name``."""
    grammars: list[dict[str, Any]] = [{"name": "main", "lark_grammar": rules}]
    for name, grammar in parts.items():
        if not grammar.startswith("{"):
            grammars.append({"name": name, "lark_grammar": grammar})
            continue
        inner = json.loads(grammar)["grammars"]
        # The names of inner parts must differ from those of outer ones.
        renamed = {part["name"]: f"{name}_{part['name']}" for part in inner[1:]}
        for number, part in enumerate(inner):
            lark = part.get("lark_grammar")
            for old, new in renamed.items():
                lark = lark and re.sub(rf"@{old}\b", f"@{new}", lark)
            called = renamed[part["name"]] if number else name
            grammars.append({**part, "name": called, **({"lark_grammar": lark} if lark else {})})
    return json.dumps({"grammars": grammars})


def _of_kind(constraint: StructuredOutputs) -> str:
    if constraint.kind == "json":
        try:
            schema = json.loads(constraint.constraint)
        except RecursionError as error:
            raise _refusal("json is nested too deeply") from error
        if isinstance(schema, dict):
            schema = enforceable_form(schema)
        check_schema(schema)
        return _json_grammar(schema, constraint.disable_any_whitespace)
    if constraint.json_object:
        return _json_grammar({"type": "object"}, constraint.disable_any_whitespace)
    if constraint.regex is not None:
        if ends_in_escape(constraint.regex):
            raise _refusal(OPEN_ESCAPE)
        return LLMatcher.grammar_from_regex(constraint.regex)
    if constraint.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(escaped, constraint.choice)))
    grammar = constraint.grammar or ""
    return LLMatcher.grammar_from_lark(to_lark(grammar) if "::=" in grammar else grammar)


#: How JSON is written wherever a schema is enforced.
JSON_STYLE: dict[str, Any] = {
    "lenient": False,
    "whitespace_pattern": WHITESPACE,
    # Without \u and \/ each name has one spelling, so that none slips past its schema.
    "json_allowed_escapes": 'nrtbf"\\',
    "json_allow_general_unicode_escapes": False,
}


#: The same without white space between its parts.
COMPACT_JSON_STYLE: dict[str, Any] = {
    **JSON_STYLE,
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ",",
    "key_separator": ":",
}


def _json_grammar(schema: dict[str, Any], compact: bool) -> str:
    style = COMPACT_JSON_STYLE if compact else JSON_STYLE
    return LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": style}))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _refusal(rule: str) -> RequestError:
    return RequestError(f"[structured_outputs] {rule}.", "structured_outputs")

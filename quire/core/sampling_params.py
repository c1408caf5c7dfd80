"""Settings of how one request's tokens are chosen; not how a batch is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from math import inf
from numbers import Integral, Real
from operator import lt
from typing import Any, NoReturn, Self

from quire.core.errors import InvalidSamplingParamsError
from quire.core.quoting import quoted
from quire.core.speculative_params import SpeculativeField, read_speculative
from quire.core.structured_outputs import StructuredOutputs, read_structured_outputs
from quire.core.suggestions import did_you_mean
from quire.core.token_words import TokenWords

MAX_N = 128
#: Stop strings, and words that are never generated: each is looked for at every token.
MAX_TEXTS = 1024
#: Tokens whose log-probabilities are reported by name: each costs a look at all logits.
MAX_NAMED_LOGPROBS = 128
#: Bytes of an id in a list of settings, about.
BYTES_PER_ID = 32
#: The states that a vector is made of, and what a head gives instead of one.
VECTORS = ("last", "mean", "cls", "pooler")
POOLINGS = (*VECTORS, "classify")

#: Type of the fields, as text and by name.
_KINDS: tuple[tuple[type[Any], str, tuple[str, ...]], ...] = (
    (
        Integral,
        "a whole number",
        (
            "n",
            "top_k",
            "repeat_last_n",
            "min_tokens",
            "seed",
            "max_tokens",
            "logprobs",
            "prompt_logprobs",
        ),
    ),
    (
        Real,
        "a number",
        (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ),
    ),
    (
        bool,
        "True or False",
        (
            "ignore_eos",
            "include_stop_str_in_output",
            "skip_special_tokens",
            "detokenize",
            "token_origins",
        ),
    ),
)
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")


#: Names of other libraries, and what to say of them.
_ELSEWHERE = {
    **dict.fromkeys(
        (
            "max_new_tokens",
            "max_length",
            "max_completion_tokens",
            "max_output_tokens",
            "max_gen_len",
            "num_predict",
            "n_predict",
        ),
        " Did you mean max_tokens?",
    ),
    **dict.fromkeys(("repeat_penalty", "repetition"), " Did you mean repetition_penalty?"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "eos"), " Did you mean stop?"),
    **dict.fromkeys(
        (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "grammar",
            "json_schema",
            "response_format",
        ),
        " Take structured_outputs={'json': schema}, or its regex, choice or grammar.",
    ),
    "typical_p": " Take top_p or min_p.",
    "random_seed": " Did you mean seed?",
    "stream": " Iterate over AsyncLLM.generate.",
    "num_return_sequences": " Did you mean n?",
    "num_beams": " Take LLM.beam_search.",
    "do_sample": " Take temperature=0 for greedy.",
    "guided_decoding": " Did you mean structured_outputs?",
    "best_of": " Take n.",
    "logits_processors": " The engine runs no code of callers.",
    "extra_args": " Nothing here would read them.",
}


class RequestOutputKind(Enum):
    """The content of each of a request's outputs, as in vLLM."""

    #: Everything generated so far.
    CUMULATIVE = 0
    #: What is new since the last output, of the sequences that have something new.
    DELTA = 1
    #: Everything, in a single output when the request has finished.
    FINAL_ONLY = 2


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request, in vLLM's names and defaults.

    Fields may be set afterwards, as scripts for vLLM do; a request takes a copy, which is checked
    again.

    Args:
        n: Sequences generated from the prompt, 1 to 128.
        temperature: Divisor of the logits, 0 is greedy; dimensionless.
        top_p: Nucleus mass in (0, 1].
        top_k: Candidates kept; 0 or -1 keeps all.
        min_p: Least probability relative to the most likely token, in [0, 1].
        repetition_penalty: Factor in [1e-6, 1e6] that divides positive and multiplies negative
            logits of tokens that occur in prompt or output.
        presence_penalty: Number in [-2, 2], subtracted once per token that occurs in the output.
        frequency_penalty: Number in [-2, 2], subtracted per occurrence in the output.
        repeat_last_n: The last tokens of prompt and output that the three penalties look at; -1
            means all, 0 none. The name is llama.cpp's.
        seed: Seed that makes the draw reproducible; None draws one per request.
        stop: Strings that end the output and are cut from it.
        stop_token_ids: Token ids that end the output.
        bad_words: Strings that are never generated.
        bad_words_token_ids: Token sequences that are never generated; ``LLM`` and ``AsyncLLM`` add
            those of ``bad_words``.
        ignore_eos: Whether output continues after an end-of-sequence token.
        max_tokens: Output limit in tokens; None means up to the context length.
        min_tokens: Number of tokens before which no end-of-sequence token and no stop ends the
            output.
        logprobs: Alternatives reported per output token; None reports nothing, -1 the whole
            vocabulary. The sampled token is always reported as well.
        prompt_logprobs: The same for prompt tokens.
        logprob_token_ids: Tokens whose log-probabilities are reported as well, however unlikely
            they are; at most 128.
        logit_bias: Numbers added to the logits of the given token ids; minus infinity forbids one.
        allowed_token_ids: Token ids of which, when given, no other is generated.
        include_stop_str_in_output: Whether the matched stop string is kept in the text.
        skip_special_tokens: Whether special tokens are left out of the text.
        detokenize: Whether text is produced; False leaves only token ids.
        structured_outputs: Constraint that the text must meet. It then ends where the grammar does.
            A dict of its fields, or a class of pydantic, is read as one.
        pooling: Kind of output in place of text. The hidden states of the prompt as one vector:
            ``mean`` of all, ``last`` token's, first token's (``cls``), or what an encoder's
            ``pooler`` makes of that. Or ``classify``: the logits of the model's classes.
        speculative: Settings of speculation. False: no tokens are proposed ahead. An object with
            ``method``, ``num_speculative_tokens`` and ``acceptance``: how they are; None or True:
            as the engine is set. Kept as :class:`~quire.core.speculative_params.SpeculativeParams`.
        token_origins: Whether each token's origin is reported, in
            :attr:`~quire.core.outputs.CompletionOutput.token_origins`.
        output_kind: Content of each :class:`~quire.core.outputs.RequestOutput`.

    Raises:
        InvalidSamplingParamsError: A value has the wrong type or is out of range; the error's
            ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_token_ids: TokenWords | tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = field(default=True)
    structured_outputs: StructuredOutputs | None = None
    pooling: str | None = None
    speculative: SpeculativeField = None
    token_origins: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """Refuse names of other libraries with the one that is meant."""
        fields: Iterable[str] = cls.__dataclass_fields__
        for name in keywords:
            if name not in fields:
                meant = _ELSEWHERE.get(name) or did_you_mean(name, fields)
                raise TypeError(f"SamplingParams has no field {name!r}.{meant}")
        return object.__new__(cls)

    @classmethod
    def from_optional(cls, **keywords: Any) -> Self:
        """Return settings of which those that are None are left at their defaults."""
        return cls(**{name: value for name, value in keywords.items() if value is not None})

    @property
    def num_bytes(self) -> int:
        """Memory that its lists and texts take, about."""
        lists = (self.logit_bias, self.allowed_token_ids, self.stop_token_ids)
        texts = (*(self.stop or ()), *(self.bad_words or ()))
        constraint = self.structured_outputs
        return (
            BYTES_PER_ID * sum(len(ids or ()) for ids in lists)
            + sum(map(len, texts))
            + (0 if constraint is None else len(constraint.key))
        )

    def clone(self) -> Self:
        """Return a copy that may be changed."""
        return deepcopy(self)

    def __post_init__(self) -> None:
        self._read_kinds()
        self.stop = _texts("stop", self.stop)
        self.bad_words = _texts("bad_words", self.bad_words)
        self.stop_token_ids = _ids("stop_token_ids", self.stop_token_ids or ())
        try:
            self.bad_words_token_ids = TokenWords.of(self.bad_words_token_ids)
        except (TypeError, OverflowError):
            _refuse("bad_words_token_ids", "must be lists of token ids", self.bad_words_token_ids)
        self.logprob_token_ids = _ids("logprob_token_ids", self.logprob_token_ids or ())
        if self.logprob_token_ids and self.logprobs is None:
            self.logprobs = 0
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _ids("allowed_token_ids", self.allowed_token_ids)
        if self.logit_bias is not None:
            self.logit_bias = _biases(self.logit_bias)
        self.speculative = read_speculative(self.speculative)
        self._check()

    def _read_kinds(self) -> None:
        """Refuse wrong types here: in the middle of a step they would stop the engine."""
        for kind, words, names in _KINDS:
            for name in names:
                value: Any = getattr(self, name)
                if value is None and name in _OPTIONAL:
                    continue
                if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
                    _refuse(name, f"must be {words}", value)
                if kind is Integral:
                    setattr(self, name, int(value))  # numpy's, too

    def _check(self) -> None:
        bounds = (
            ("n", 1, MAX_N),
            ("temperature", 0.0, 1e4),
            ("min_p", 0.0, 1.0),
            # So that logits stay numbers in float32.
            ("repetition_penalty", 1e-6, 1e6),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
            ("min_tokens", 0, 2**31 - 1),
            ("top_k", -1, 2**31 - 1),
            ("repeat_last_n", -1, 2**31 - 1),
            ("seed", -(2**63), 2**63 - 1),
        )
        for name, low, high in bounds:
            value = getattr(self, name)
            # NaN compares false with everything, so the test is written to fail on it.
            if value is not None and not low <= value <= high:
                _refuse(name, f"must be in [{low}, {high}]", value)
        if not 0.0 < self.top_p <= 1.0:
            _refuse("top_p", "must be in (0, 1]", self.top_p)
        if self.max_tokens is not None and self.max_tokens < 1:
            _refuse("max_tokens", "must be at least 1", self.max_tokens)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse(
                "min_tokens", f"must be at most max_tokens ({self.max_tokens})", self.min_tokens
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and value < -1:
                _refuse(name, "must be -1 (all), 0 or more", value)
        if len(self.logprob_token_ids) > MAX_NAMED_LOGPROBS:
            count = f"{len(self.logprob_token_ids)} of them"
            _refuse("logprob_token_ids", f"must hold at most {MAX_NAMED_LOGPROBS} ids", count)
        if any(not text for text in self.stop or ()):
            _refuse("stop", "must not hold empty strings", self.stop)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            _refuse("allowed_token_ids", "must hold at least one token id", [])
        if not isinstance(self.output_kind, RequestOutputKind):
            _refuse("output_kind", "must be a RequestOutputKind", self.output_kind)
        if self.pooling is not None:
            self._check_pooling()
        if self.structured_outputs is not None:
            self.structured_outputs = read_structured_outputs(self.structured_outputs)
            # Both would go on where the grammar leaves nothing to go on with.
            for name in ("ignore_eos", "min_tokens"):
                if getattr(self, name):
                    _refuse(name, "must be unset with structured_outputs", getattr(self, name))

    def _check_pooling(self) -> None:
        if self.pooling not in POOLINGS:
            _refuse("pooling", f"must be one of {', '.join(POOLINGS)}", self.pooling)
        if self.n != 1:
            _refuse("n", "must be 1 with pooling", self.n)
        for name in ("logprobs", "prompt_logprobs", "structured_outputs"):
            if getattr(self, name) is not None:
                _refuse(name, "must be unset with pooling", getattr(self, name))


def _texts(name: str, value: object) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value or ()
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        _refuse(name, "must be text or a list of texts", value)
    if len(items) > MAX_TEXTS:
        _refuse(name, f"must hold at most {MAX_TEXTS} texts", f"{len(items)} of them")
    return tuple(items)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        _refuse(name, "must be a list of token ids", value)
    items = tuple(value)
    if not all(issubclass(kind, Integral) for kind in set(map(type, items))):
        _refuse(name, "must be a list of token ids", value)
    return items


def _biases(value: Any) -> dict[int, float]:
    items: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {None: None}
    if (
        not all(issubclass(kind, Integral) for kind in set(map(type, items)))
        or not all(issubclass(kind, Real) for kind in set(map(type, items.values())))
        or not all(map(lt, items.values(), repeat(inf)))
    ):
        _refuse("logit_bias", "must map token ids to numbers below infinity", value)
    return items


def _refuse(name: str, rule: str, value: object) -> NoReturn:
    raise InvalidSamplingParamsError(f"[{name}] {rule}; got {quoted(value)}.", param=name)

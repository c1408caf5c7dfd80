"""How one request's tokens are chosen; not how a batch is sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.errors import InvalidSamplingParamsError

MAX_N = 128


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request, in vLLM's names and defaults.

    Fields may be set afterwards, as scripts for vLLM do; a request takes a copy, which is checked
    again.

    Args:
        n: Sequences generated from the prompt, 1 to 128.
        temperature: 0 is greedy; dimensionless.
        top_p: Nucleus mass in (0, 1].
        top_k: Candidates kept; 0 or -1 keeps all.
        min_p: Least probability relative to the most likely token, in [0, 1].
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens that
            occur in prompt or output.
        presence_penalty: In [-2, 2], subtracted once per token that occurs in the output.
        frequency_penalty: In [-2, 2], subtracted per occurrence in the output.
        seed: Makes the draw reproducible; None draws one per request.
        stop: Strings that end the output and are cut from it.
        stop_token_ids: Token ids that end the output.
        bad_words: Strings that are never generated.
        bad_words_token_ids: Token sequences that are never generated; ``LLM`` and ``AsyncLLM`` add
            those of ``bad_words``.
        ignore_eos: Go on after an end-of-sequence token.
        max_tokens: Output limit in tokens; None means up to the context length.
        min_tokens: No end-of-sequence or stop before so many tokens.
        logprobs: Alternatives reported per output token; None reports nothing, -1 the whole
            vocabulary. The sampled token is always reported beside them.
        prompt_logprobs: The same for prompt tokens.
        logit_bias: Added to the logits of the given token ids.
        allowed_token_ids: When given, no other token is generated.
        include_stop_str_in_output: Keep the matched stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        detokenize: Produce text; False leaves only token ids.

    Raises:
        InvalidSamplingParamsError: A value is out of range; the error's ``param`` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = field(default=True)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        self.stop = stop
        self.stop_token_ids = tuple(self.stop_token_ids or ())
        self.bad_words = tuple(self.bad_words or ())
        self._check()

    def _check(self) -> None:
        bounds = (
            ("n", 1, MAX_N),
            ("temperature", 0.0, 1e4),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
            ("min_tokens", 0, 2**31 - 1),
        )
        for name, low, high in bounds:
            value = getattr(self, name)
            # NaN compares false with everything, so the test is written to fail on it.
            if not low <= value <= high:
                _refuse(name, f"must be in [{low}, {high}]", value)
        if not 0.0 < self.top_p <= 1.0:
            _refuse("top_p", "must be in (0, 1]", self.top_p)
        if self.top_k < -1:
            _refuse("top_k", "must be 0 or -1 (off) or at least 1", self.top_k)
        if not 0.0 < self.repetition_penalty < float("inf"):
            _refuse("repetition_penalty", "must be > 0 and finite", self.repetition_penalty)
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
        if any(not text for text in self.stop or ()):
            _refuse("stop", "must not hold empty strings", self.stop)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            _refuse("allowed_token_ids", "must hold at least one token id", [])


def _refuse(name: str, rule: str, value: object) -> None:
    raise InvalidSamplingParamsError(f"[{name}] {rule}; got {value!r}.", param=name)

"""``POST /completion`` of llama-server on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.protocol.compat import CompatRequest, refuse, shared_fields
from quire.protocol.decimal_text import read_decimal
from quire.protocol.generation import MAX_TOKEN_ID, Count, Seed
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.prompt_list import PromptField, read_prompts
from quire.protocol.speculative_fields import NumTokens, SpeculativeField, SpeculativeFields
from quire.protocol.structured_output_fields import StructuredOutputsField

#: Our names of settings; ``n_predict`` and some others need more.
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop",
        "ignore_eos", "repeat_last_n",
    )
} | {"repeat_penalty": "repetition_penalty", "n_probs": "logprobs"}  # fmt: skip
BIAS_OF_FALSE = -100.0
#: Of all texts that ``logit_bias`` names: they become tokens in the event loop.
MAX_BIAS_CHARACTERS = 1 << 14
#: Names of samplers, and paths of an answer's fields; the answer to each prompt repeats them.
NameText = Annotated[str, msgspec.Meta(max_length=64)]
NameList = Annotated[list[NameText], msgspec.Meta(max_length=256)]
#: Samplers by the letters that stand for them, and what leaves out those that are served; the
#: others do nothing unless their own field, which is refused, turns them on.
_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
}  # fmt: skip
_LEFT_OUT: dict[str, dict[str, float]] = {
    "penalties": {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    },
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}
#: Turn nothing on by being named.
_NEED_A_FIELD = ("dry", "top_n_sigma", "typ_p", "typical_p", "xtc", "adaptive_p")


class LlamaRequest(CompatRequest, kw_only=True):
    """The request; None means the model's own default, not llama-server's."""

    refused = {
        "typical_p": (1.0,),
        "mirostat": (0,),
        "dry_multiplier": (0.0,),
        "xtc_probability": (0.0,),
        "dynatemp_range": (0.0,),
        "top_n_sigma": (-1.0,),
        "adaptive_target": (-1.0,),
        "min_keep": (0, 1),
        "n": (1,),
        "n_cmpl": (1,),
        "grammar_lazy": (False,),
        "grammar_triggers": ([],),
        "reasoning_budget_tokens": (-1,),
        "lora": ([],),
        "image_data": ([],),
        "post_sampling_probs": (False,),
    }
    sent_names = {ours: theirs for theirs, ours in _NAMES.items()} | {
        "max_tokens": "n_predict",
    }

    prompt: PromptField
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_k: Count | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Count | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
    n_probs: Count | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_fields: NameList | None = None
    samplers: NameText | NameList | None = None
    n_indent: Count | None = None
    t_max_predict_ms: int | None = None
    speculative: SpeculativeField = None
    speculative_n_max: NumTokens | None = msgspec.field(name="speculative.n_max", default=None)

    @property
    def output_limit(self) -> int | None:
        """``n_predict``, or what OpenAI's clients call it."""
        given = (self.n_predict, self.max_tokens, self.max_completion_tokens)
        return next((limit for limit in given if limit is not None), None)

    @property
    def constraint_field(self) -> str | None:
        """``grammar`` or ``json_schema``; see :class:`RequestBody`."""
        if self.grammar:
            return "grammar"
        return None if self.json_schema is None else "json_schema"

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts."""
        return read_prompts(self.prompt, "prompt")

    def asked_speculation(self) -> SpeculativeField:
        """Return how tokens are proposed; llama-server's name is for their number alone.

        Raises:
            RequestError: Both names are given.
        """
        most = self.speculative_n_max
        if most is None:
            return self.speculative
        if self.speculative is not None:
            raise refuse("speculative.n_max", "must be absent when speculative is given", most)
        return SpeculativeFields(num_speculative_tokens=most)

    def line_limits(self) -> tuple[int, float | None] | None:
        """Return the least indentation and the most seconds of a text; None when it has neither."""
        seconds = (self.t_max_predict_ms or 0) / 1000
        indent = max(0, self.n_indent or 0)
        return (indent, seconds if seconds > 0 else None) if indent or seconds > 0 else None

    def named_samplers(self) -> list[str]:
        """Return the samplers that the request wants, as far as it says."""
        given = self.samplers or ()
        return [_LETTERS.get(n, n) for n in given] if isinstance(given, str) else list(given)

    def without_effect(self) -> list[str]:
        """Return the fields that do nothing: settings of samplers that are left out, and the order
        of samplers where it is another than here.
        """
        if self.samplers is None:
            return []
        named = self.named_samplers()
        kept = [name for name in named if name not in _NEED_A_FIELD]
        off = [
            self.sent_names.get(ours, ours)
            for name in _LEFT_OUT.keys() - set(named)
            for ours in _LEFT_OUT[name]
        ]
        found = sorted(name for name in off if getattr(self, name) is not None)
        return [*found, "samplers"] if kept != [n for n in _LEFT_OUT if n in kept] else found

    def completion_request(self, encode: Callable[[str], list[int]]) -> CompletionRequest:
        """Return the completion request that has the same text.

        Args:
            encode: A function that returns the tokens of a text.

        Raises:
            RequestError: A combination that no single field shows.
        """
        fields = shared_fields(self, _NAMES)
        if self.samplers is not None:
            for name in _LEFT_OUT.keys() - set(self.named_samplers()):
                fields |= _LEFT_OUT[name]
        if not self.n_probs:
            fields.pop("logprobs", None)
        limit = self.output_limit
        if limit is not None and limit < -1:
            raise refuse("n_predict", "must be at least 0, or -1 for no limit", limit)
        if self.cache_prompt is False:
            raise refuse("cache_prompt", "must be true: equal prefixes are always shared", False)
        if self.grammar and self.json_schema is not None:
            raise refuse("json_schema", "must be absent when grammar is given", self.json_schema)
        if self.grammar:
            fields["structured_outputs"] = StructuredOutputsField(grammar=self.grammar)
        elif self.json_schema is not None:
            fields["structured_outputs"] = StructuredOutputsField(json=self.json_schema)
        if self.seed is not None and self.seed >= 0:
            fields["seed"] = self.seed  # a negative one means any
        fields["speculative"] = self.asked_speculation()
        if self.logit_bias:
            fields["logit_bias"] = dict(self._biases(encode))
        return CompletionRequest(
            **fields,
            prompt=self.prompt,
            # Of none, one is computed and not shown: what counts is that the prompt is cached.
            max_tokens=None if limit is None or limit < 0 else max(limit, 1),
            stream=self.stream,
        )

    def _biases(self, encode: Callable[[str], list[int]]) -> list[tuple[int, float]]:
        """Return the biases of tokens; that of a text is of each of its tokens."""
        given = self.logit_bias or ()
        in_object = isinstance(given, dict)  # where ids are texts, too
        found: list[tuple[int, float]] = []
        num_characters = 0
        for name, value in given.items() if isinstance(given, dict) else given:
            number = name if isinstance(name, int) else None
            if in_object and isinstance(name, str) and name.isdecimal():
                number = -1 if (read := read_decimal(name, MAX_TOKEN_ID)) is None else read
            if number is not None and not 0 <= number <= MAX_TOKEN_ID:
                raise refuse("logit_bias", "must name tokens by ids or texts", name)
            num_characters += len(name) if isinstance(name, str) else 0
            if num_characters > MAX_BIAS_CHARACTERS:
                rule = f"must have texts of at most {MAX_BIAS_CHARACTERS} characters in all"
                raise refuse("logit_bias", rule, num_characters)
            if value is not True:  # False bans the token; True means nothing there.
                bias = BIAS_OF_FALSE if value is False else value
                token_ids = encode(str(name)) if number is None else [number]
                found += [(token_id, bias) for token_id in token_ids]
        return found


class InfillChunk(msgspec.Struct, kw_only=True):
    """Text of another file; what else editors say of it does not matter."""

    text: str
    filename: str = "tmp"


class InfillRequest(LlamaRequest, kw_only=True):
    """``POST /infill``: what is to stand between two texts; ``prompt`` ends the first of them."""

    input_prefix: str
    input_suffix: str
    input_extra: list[InfillChunk] | None = None
    prompt: str = ""


class LlamaProbability(msgspec.Struct, kw_only=True):
    """A token, its natural log-probability and its exact bytes."""

    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[LlamaProbability] | UnsetType = UNSET


class LlamaTimings(msgspec.Struct, kw_only=True):
    """Times of prompt and output; rates are in tokens a second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaAnswer(msgspec.Struct, kw_only=True):
    """The answer, and with a piece of the text an event of a stream; the last has the rest."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[LlamaProbability] | UnsetType = UNSET
    timings: LlamaTimings | UnsetType = UNSET
    model: str | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    generation_settings: dict[str, Any] | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: Literal["none", "eos", "limit", "word"] | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET

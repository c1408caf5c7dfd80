"""Fields that chat and text completion requests share, as sent; not how they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from quire.core.beam_search_params import BeamSearchParams
from quire.core.errors import RequestError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.protocol.speculative_fields import SpeculativeField, asked_speculation
from quire.protocol.structured_output_fields import StructuredRequest

#: Fields that go to :class:`SamplingParams` under their own name.
SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "repeat_last_n", "seed", "stop", "stop_token_ids", "bad_words",
    "ignore_eos", "min_tokens", "logit_bias", "allowed_token_ids", "include_stop_str_in_output",
    "skip_special_tokens", "prompt_logprobs",
)  # fmt: skip

MAX_TOKEN_ID = 2**31 - 1
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
MAX_LOGIT_BIAS = 100.0


#: Settings that mean nothing to a beam search, and their values that ask for nothing.
_NOT_OF_BEAMS: dict[str, tuple[Any, ...]] = {
    "stream": (False,), "temperature": (0.0,), "top_p": (1.0,), "top_k": (-1, 0), "min_p": (0.0,),
    "repetition_penalty": (1.0,), "presence_penalty": (0.0,), "frequency_penalty": (0.0,),
    "repeat_last_n": (-1,), "stop": ([], ""), "stop_token_ids": ([],), "bad_words": ([],),
    "min_tokens": (0,), "logit_bias": ({},), "allowed_token_ids": (),
    "include_stop_str_in_output": (False,), "prompt_logprobs": (),
    "return_token_origins": (False,),
}  # fmt: skip


class StreamOptions(msgspec.Struct, kw_only=True):
    """Extras of a streamed answer.

    Attributes:
        include_usage: Whether one last chunk without choices carries the usage.
        continuous_usage_stats: Whether every chunk carries the usage so far.
        include_obfuscation: Whether padding is asked for; it is never sent.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(StructuredRequest, kw_only=True):
    """Fields of both completion endpoints; None (JSON null or absent) means the default."""

    n: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: Count | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    logit_bias: dict[TokenId, float] | None = None
    allowed_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Count | None = None
    speculative: SpeculativeField = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    cache_salt: CacheSalt | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_token_origins: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    def check(self) -> None:
        """Refuse combinations that no single field shows.

        Raises:
            RequestError: ``param`` names one of the fields.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "[stream_options] needs stream: true; got stream: false.", "stream_options"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError(
                "[prompt_logprobs] is not available when stream is true. Send stream: false.",
                "prompt_logprobs",
            )
        if self.length_penalty not in (None, 1.0) and not self.use_beam_search:
            raise RequestError(
                f"[length_penalty] needs use_beam_search: true; got {self.length_penalty} without.",
                "length_penalty",
            )
        if self.use_beam_search:
            for name, neutral in _NOT_OF_BEAMS.items():
                value = getattr(self, name, None)
                if value is not None and not any(
                    type(value) is type(one) and value == one for one in neutral
                ):
                    raise RequestError(
                        f"[{name}] does not go with use_beam_search, which keeps the most likely "
                        "sequences whole. Leave one of the two out.",
                        name,
                    )
        for token_id, bias in (self.logit_bias or {}).items():
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
                raise RequestError(
                    f"[logit_bias] must be in [-100, 100]; got {bias} for token {token_id}.",
                    "logit_bias",
                )

    def sampling_params(
        self,
        defaults: Mapping[str, Any],
        max_tokens: int | None,
        logprobs: int | None,
        **settings: Any,
    ) -> SamplingParams:
        """Join the request with the model's own defaults; what the request sets wins.

        The engine is to yield deltas, so that a step's cost does not grow with the answer.

        Args:
            defaults: ``EngineClient.default_sampling_params``.
            max_tokens: Output limit in tokens, None up to the context length.
            logprobs: Alternatives per output token, None for no log-probabilities.
            **settings: Settings that the server decides; they win over what the request sets.

        Raises:
            InvalidSamplingParamsError: A value is out of range; ``param`` names the field.
        """
        keywords = dict(defaults)
        for name in SAMPLING_FIELDS:
            value = getattr(self, name)
            if value is not None:
                keywords[name] = value
        constraint = self.constraint()
        if constraint is not None:
            keywords["structured_outputs"] = constraint
        keywords["speculative"] = asked_speculation(self.speculative)
        keywords["token_origins"] = bool(self.return_token_origins)
        keywords["max_tokens"] = max_tokens
        keywords["logprobs"] = logprobs
        keywords["output_kind"] = RequestOutputKind.DELTA
        return SamplingParams(**(keywords | settings))

    def beam_search(self, params: SamplingParams) -> BeamSearchParams:
        """Return the settings of a search with ``n`` beams, for a request with ``use_beam_search``.

        Args:
            params: The result of :meth:`sampling_params`, ``max_tokens`` known.

        Raises:
            RequestError: The request is for something that a beam search cannot do.
        """
        if params.structured_outputs is not None or params.max_tokens is None:
            name = "max_tokens" if params.max_tokens is None else "structured_outputs"
            rule = "must be given with" if params.max_tokens is None else "does not go with"
            raise RequestError(f"[{name}] {rule} use_beam_search.", name)
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return BeamSearchParams(
            self.n or 1, params.max_tokens, bool(self.ignore_eos), length_penalty=penalty
        )


class PromptTokensDetails(msgspec.Struct):
    """``cached_tokens``: prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Counts of the completion tokens by kind.

    Attributes:
        reasoning_tokens: Tokens up to the end of the reasoning.
        accepted_prediction_tokens, rejected_prediction_tokens: Tokens proposed ahead of the model,
            by whether they held; only for requests with ``return_token_origins``.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of one answer, all choices together."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """Build the usage of an answer from its three counts, in tokens."""
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens),
    )

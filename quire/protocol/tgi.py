"""``POST /generate``, ``/generate_stream`` and ``/`` of TGI on the wire."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.protocol.compat import CommonSettings, CompatRequest, refuse, shared_fields
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.speculative_fields import SpeculativeField
from quire.protocol.structured_output_fields import tgi_constraint

DEFAULT_MAX_NEW_TOKENS = 100
_NAMES = {
    name: name
    for name in (
        "temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty", "seed", "stop",
        "speculative",
    )
}  # fmt: skip
#: Settings that have TGI draw tokens although ``do_sample`` is not set.
_DRAWING = ("temperature", "top_k", "top_p")


class TgiGrammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A grammar that the text must follow."""

    type: Literal["json", "json_object", "json_schema", "regex"]
    value: str | dict[str, Any]


class TgiParameters(CommonSettings, kw_only=True):
    """``parameters``; None means the default."""

    max_new_tokens: int | UnsetType | None = UNSET
    repetition_penalty: float | None = None
    stop: list[str] | None = None
    do_sample: bool | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    grammar: TgiGrammar | None = None
    speculative: SpeculativeField = None


class TgiRequest(CompatRequest, kw_only=True):
    """The request of both routes."""

    refused = {
        f"parameters.{name}": neutral
        for name, neutral in {
            "adapter_id": (),
            "best_of": (1,),
            "top_n_tokens": (0,),
            "truncate": (),
            "typical_p": (1.0,),
            "watermark": (False,),
        }.items()
    }
    sent_names = {name: f"parameters.{name}" for name in _NAMES} | {
        "prompt": "inputs",
        "max_tokens": "parameters.max_new_tokens",
        "structured_outputs": "parameters.grammar",
        "prompt_logprobs": "parameters.decoder_input_details",
    }

    inputs: str
    parameters: TgiParameters | None = None

    def completion_request(self) -> CompletionRequest:
        """Return the completion request that has the same text.

        Raises:
            RequestError: A combination that no single field shows.
        """
        asked = self.parameters or TgiParameters()
        if asked.decoder_input_details and not asked.details:
            raise refuse("parameters.decoder_input_details", "needs details: true", True)
        fields = shared_fields(asked, _NAMES)
        if not asked.do_sample and not any(name in fields for name in _DRAWING):
            fields["temperature"] = 0.0
        elif "temperature" not in fields:
            fields["temperature"] = 1.0
        if asked.max_new_tokens is not UNSET:
            fields["max_tokens"] = asked.max_new_tokens
        if asked.grammar is not None:
            fields["structured_outputs"] = tgi_constraint(
                asked.grammar.type, asked.grammar.value, "parameters.grammar"
            )
        return CompletionRequest(
            **fields,
            prompt=self.inputs,
            stream=self.stream,
            include_stop_str_in_output=True,
            logprobs=0 if asked.details or self.stream else None,
            prompt_logprobs=0 if asked.decoder_input_details else None,
        )


class TgiToken(msgspec.Struct):
    """A token, its text and its natural log-probability; the first of a prompt has none."""

    id: int
    text: str
    logprob: float | None
    special: bool | UnsetType = UNSET


class TgiDetails(msgspec.Struct, kw_only=True):
    """Details of a generation; ``tokens`` and ``prefill`` are not streamed."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int | UnsetType = UNSET
    prefill: list[TgiToken] | UnsetType = UNSET
    tokens: list[TgiToken] | UnsetType = UNSET


class TgiAnswer(msgspec.Struct, kw_only=True):
    """The answer when it is not streamed."""

    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class TgiEvent(msgspec.Struct, kw_only=True):
    """One token of a stream; the last has the whole text and the details."""

    index: int
    token: TgiToken
    generated_text: str | None = None
    details: TgiDetails | None = None

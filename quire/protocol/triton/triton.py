"""Triton's generate extension on the wire, with the parameters of its LLM backends."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.core.errors import RequestError
from quire.protocol.body_limits import check_field
from quire.protocol.compat import CommonSettings, CompatRequest, refuse, shared_fields
from quire.protocol.decode import to_struct
from quire.protocol.generation import Count, Seed
from quire.protocol.openai.completion import CompletionRequest
from quire.protocol.speculative_fields import SpeculativeField, SpeculativeFields

#: Our names of settings.
NAMES = {
    name: name
    for name in (
        "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "seed", "stop", "min_tokens", "ignore_eos",
    )
}  # fmt: skip
#: Triton's own parameters are scalars: an object may come as a text.
SpeculativeText = bool | str | SpeculativeFields | None


class _Speculative(msgspec.Struct):
    speculative: SpeculativeField = None


class TritonParameters(CommonSettings, kw_only=True):
    """``parameters``; None means the default."""

    max_tokens: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    speculative: SpeculativeText = None
    stream: bool | None = None
    exclude_input_in_output: bool | None = None

    def completion_fields(self) -> dict[str, Any]:
        """Return the fields of a completion request that were given.

        Raises:
            RequestError: ``speculative`` is a text that is not what the field takes.
        """
        fields = shared_fields(self, NAMES)
        if isinstance(self.speculative, str):
            fields["speculative"] = _read_speculative(self.speculative)
        elif self.speculative is not None:
            fields["speculative"] = self.speculative
        return fields


def _read_speculative(text: str) -> SpeculativeField:
    """Return what a text in JSON asks for, with the errors of the field itself."""
    content = msgspec.Raw(text.encode())
    check_field("speculative", content)
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        rule = "must be false, true or an object in JSON where it is a text"
        raise refuse("speculative", rule, text) from error
    return to_struct({"speculative": content}, _Speculative)[0].speculative


_REFUSED: dict[str, tuple[Any, ...]] = {
    "bad_words": ([], ""),
    "beam_width": (1,),
    "best_of": (1,),
    "embedding_bias_words": ([], ""),
    "end_id": (),
    "image_input": (),
    "length_penalty": (1.0,),
    "n": (1,),
    "num_return_sequences": (1,),
    "pad_id": (),
    "random_seed": (),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "return_log_probs": (False,),
    "stop_words": ([], ""),
    "use_beam_search": (False,),
}


class TritonRequest(CompatRequest, kw_only=True):
    """The request of both routes; the model is in the path, parameters may stand at the top."""

    refused = _REFUSED | {f"parameters.{name}": value for name, value in _REFUSED.items()}
    sent_names = {"prompt": "text_input"}

    text_input: str
    id: str | None = None
    parameters: TritonParameters | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: Count | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    speculative: SpeculativeText = None
    exclude_input_in_output: bool | None = None

    def given(self) -> TritonParameters:
        """Return the parameters, wherever they stand.

        Raises:
            RequestError: A parameter stands in both places, with two values.
        """
        asked = self.parameters or TritonParameters()
        joined = TritonParameters()
        for name in TritonParameters.__struct_fields__:
            inside, outside = getattr(asked, name), getattr(self, name)
            if None not in (inside, outside) and inside != outside:
                raise RequestError(
                    f"[parameters.{name}] must equal {name} outside of parameters; got "
                    f"{inside!r:.80} and {outside!r:.80}. Send one of them.",
                    f"parameters.{name}",
                )
            setattr(joined, name, outside if inside is None else inside)
        return joined

    @property
    def asks_to_stream(self) -> bool | None:
        """Whether the body asks for a stream; None when it does not say."""
        return self.given().stream

    def completion_request(self) -> CompletionRequest:
        """Return the completion request that has the same text.

        Raises:
            RequestError: An error of :meth:`given` or :meth:`TritonParameters.completion_fields`.
        """
        fields = self.given().completion_fields()
        return CompletionRequest(**fields, prompt=self.text_input, stream=self.stream)


class TritonAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer, and with a piece of the text an event of a stream."""

    model_name: str
    model_version: str
    text_output: str
    id: str | None = None

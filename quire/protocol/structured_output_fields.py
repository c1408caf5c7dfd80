"""The ways a request asks for structured output, as sent; what can be enforced is decided below."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.core.errors import RequestError
from quire.core.structured_outputs import StructuredOutputs
from quire.protocol.request_body import StreamableBody

#: Old names of vLLM, those of llama-server and of SGLang, and the fields of
#: :class:`StructuredOutputs` that they mean.
ALIASES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
}
FIELDS = ("response_format", "structured_outputs", *ALIASES)


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``json_schema`` of a response format; only ``schema`` has an effect, and is always strict."""

    json_schema: dict[str, Any] = msgspec.field(name="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's ``response_format``.

    TGI's has a ``value`` in it, see :func:`tgi_constraint`; llama-server's a ``schema``, which
    says what the object of ``json_object`` looks like.
    """

    type: Literal["text", "json_object", "json_schema", "json", "regex"]
    json_schema: JsonSchemaFormat | None = None
    value: str | dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class StructuredOutputsField(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``; see :class:`StructuredOutputs`, which checks the values."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    backend: str | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


def tgi_constraint(
    kind: str, value: str | dict[str, Any] | None, field: str
) -> StructuredOutputsField:
    """Return what TGI's grammars mean: a regular expression, or a schema, bare or with a name.

    Args:
        kind: ``regex``, or one of ``json``, ``json_object`` and ``json_schema``.
        value: The grammar's value.
        field: The field that it stands in, for errors.

    Raises:
        RequestError: The value is not of the kind.
    """
    if kind == "regex":
        if isinstance(value, str):
            return StructuredOutputsField(regex=value)
        rule = "must be text for a regex"
    else:
        if kind == "json_schema" and isinstance(value, dict):
            value = value.get("schema")
        if value is not None:
            return StructuredOutputsField(json=value)
        rule = "must be a schema"
    raise RequestError(f"[{field}.value] {rule}; got {value!r:.80}.", f"{field}.value")


class StructuredRequest(StreamableBody, kw_only=True):
    """The fields that ask for structured output; at most one may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None

    @property
    def constraint_field(self) -> str | None:
        """The field that asks for structured output; None when no field does.

        Raises:
            RequestError: Several fields ask.
        """
        asking = [name for name in FIELDS if self._asks(name)]
        if len(asking) > 1:
            raise RequestError(
                f"[{asking[1]}] at most one field may ask for structured output; got "
                f"{' and '.join(asking)}.",
                asking[1],
            )
        return asking[0] if asking else None

    def constraint(self) -> StructuredOutputs | None:
        """Return the constraint on the output.

        Raises:
            RequestError: Several fields ask, or one is incomplete.
        """
        name = self.constraint_field
        if name is None:
            return None
        if name in ALIASES:
            return StructuredOutputs(**{ALIASES[name]: getattr(self, name)})
        if self.structured_outputs is not None:
            return StructuredOutputs(**msgspec.structs.asdict(self.structured_outputs))
        form = self.response_format
        assert form is not None
        if form.value is not None or form.type in ("json", "regex"):
            meant = tgi_constraint(form.type, form.value, "response_format")
            return StructuredOutputs(**msgspec.structs.asdict(meant))
        if form.schema is not None:
            if form.type not in ("json_object", "json_schema") or form.json_schema is not None:
                raise RequestError(
                    '[response_format.schema] goes with type "json_object", and not with '
                    f"json_schema; got type {form.type}. Leave one out.",
                    "response_format.schema",
                )
            return StructuredOutputs(json=form.schema)
        if form.type == "json_object":
            return StructuredOutputs(json_object=True)
        if form.json_schema is None:
            raise RequestError(
                '[response_format.json_schema] is needed by type "json_schema"; got none.',
                "response_format.json_schema",
            )
        return StructuredOutputs(json=form.json_schema.json_schema)

    def _asks(self, name: str) -> bool:
        value = getattr(self, name)
        if name == "grammar" and value == "":  # llama-server's default
            return False
        plain = name == "response_format" and value is not None and value.type == "text"
        return value is not None and not (plain and value.schema is None)

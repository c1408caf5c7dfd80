"""The field ``speculative`` of a request: whether tokens are proposed ahead, and how."""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.core.speculative_config import MAX_TOKENS, Acceptance, MethodName
from quire.core.speculative_params import SpeculativeParams, read_speculative

NumTokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class SpeculativeFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request's choices among the server's methods; None: the server's setting.

    Attributes:
        method: A method that the server has.
        num_speculative_tokens: Most tokens proposed in a round; 0: none.
        tokens: The same, in short.
        acceptance: The rule by which a proposal holds.
    """

    method: MethodName | None = None
    num_speculative_tokens: NumTokens | None = None
    tokens: NumTokens | None = None
    acceptance: Acceptance | None = None


SpeculativeField = bool | SpeculativeFields | None


def asked_speculation(field: SpeculativeField) -> SpeculativeParams | None:
    """Return what the field asks for; None: what the server does.

    Raises:
        InvalidSamplingParamsError: Both names of the number of tokens are given and differ.
    """
    if isinstance(field, SpeculativeFields):
        given = msgspec.structs.asdict(field).items()
        return read_speculative({name: value for name, value in given if value is not None})
    return read_speculative(field)

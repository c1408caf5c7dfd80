"""Speculation as one request asks for it, and as it gets it from a server's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn, TypeAlias

from quire.core.errors import InvalidSamplingParamsError
from quire.core.speculative_config import (
    ACCEPTANCES,
    AVAILABLE_ACCEPTANCES,
    METHODS,
    Acceptance,
    MethodName,
    SpeculativeMethod,
)

FIELD = "speculative"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeParams:
    """A request's settings of speculation; what is None is as the server has it.

    Args:
        method: One of the server's methods.
        num_speculative_tokens: Number of tokens proposed in a round, at most; 0: none.
        acceptance: Rule by which a proposal holds.

    Raises:
        InvalidSamplingParamsError: A value has the wrong type or cannot be.
    """

    method: MethodName | None = None
    num_speculative_tokens: int | None = None
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        if self.method is not None and self.method not in METHODS:
            _refuse("method", f"must be one of {', '.join(METHODS)}", self.method)
        tokens = self.num_speculative_tokens
        if tokens is not None and (type(tokens) is not int or tokens < 0):
            _refuse("num_speculative_tokens", "must be a whole number of at least 0", tokens)
        if self.acceptance is not None and self.acceptance not in ACCEPTANCES:
            _refuse("acceptance", f"must be one of {', '.join(ACCEPTANCES)}", self.acceptance)

    @property
    def is_off(self) -> bool:
        """Whether the request wants no proposals at all."""
        return self.num_speculative_tokens == 0


#: A field of requests; callers may give a dict, too, see :func:`read_speculative`.
SpeculativeField: TypeAlias = SpeculativeParams | bool | None
#: What ``false`` stands for.
OFF = SpeculativeParams(num_speculative_tokens=0)
_KEYS = {field.name: field.name for field in fields(SpeculativeParams)}
_KEYS["tokens"] = "num_speculative_tokens"


def read_speculative(value: Any) -> SpeculativeParams | None:
    """Read the field as a request gives it.

    Args:
        value: The field's value. False: no proposals. None or True: as the server does. Or an
            object with ``method``, ``num_speculative_tokens`` (``tokens`` for short) and
            ``acceptance``.

    Returns:
        The settings that the request asks for; None for what the server does.

    Raises:
        InvalidSamplingParamsError: The value is none of these.
    """
    if value is None or value is True:
        return None
    if value is False:
        return OFF
    if isinstance(value, SpeculativeParams):
        return value
    if not isinstance(value, Mapping):
        _refuse("", "must be true, false or an object", value)
    known: dict[str, Any] = {}
    for key, given in value.items():
        if key not in _KEYS:
            _refuse("", f"may hold {', '.join(_KEYS)}", key)
        if known.setdefault(_KEYS[key], given) != given:
            _refuse("tokens", "must be what num_speculative_tokens says", given)
    return SpeculativeParams(**known)


@dataclass(frozen=True, slots=True)
class ChosenSpeculation:
    """The speculation that was chosen for one request.

    Attributes:
        method: One of the server's methods.
        num_tokens: Number of tokens of a round, at most; at least 1, and no more than the method's.
        acceptance: Rule by which a proposal holds.
    """

    method: MethodName
    num_tokens: int
    acceptance: Acceptance


def choose_speculation(
    asked: SpeculativeField, methods: Sequence[SpeculativeMethod]
) -> ChosenSpeculation | None:
    """Return how a request's tokens are proposed; None: they are not.

    Args:
        asked: The request's field, in a form that :func:`read_speculative` takes.
        methods: The server's methods; the first is that of requests that name none.

    Raises:
        InvalidSamplingParamsError: The server does not have what is asked for.
    """
    wish = read_speculative(asked) or SpeculativeParams()
    if wish.is_off:
        return None
    if not methods:
        given = {name: value for name, value in asdict(wish).items() if value is not None}
        if given:
            _refuse("", "needs a server that runs with --speculative-config", given)
        return None
    by_name = {method.method: method for method in methods}
    if wish.method is not None and wish.method not in by_name:
        _refuse("method", f"must be one of this server's: {', '.join(by_name)}", wish.method)
    if wish.acceptance is not None and wish.acceptance not in AVAILABLE_ACCEPTANCES:
        known = ", ".join(sorted(AVAILABLE_ACCEPTANCES))
        _refuse("acceptance", f"must be {known}: others are not available", wish.acceptance)
    method = by_name[wish.method or methods[0].method]
    tokens, limit = wish.num_speculative_tokens, method.num_speculative_tokens
    if tokens is not None and tokens > limit:
        rule = f"must be at most {limit} for {method.method} on this server"
        _refuse("num_speculative_tokens", rule, tokens)
    return ChosenSpeculation(
        method.method, limit if tokens is None else tokens, wish.acceptance or method.acceptance
    )


def _refuse(key: str, rule: str, value: Any) -> NoReturn:
    where = f"{FIELD}.{key}" if key else FIELD
    raise InvalidSamplingParamsError(f"[{where}] {rule}; got {value!r:.80}.", FIELD)

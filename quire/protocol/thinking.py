"""Fields that say whether, and how much, a model thinks before it answers; templates act on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from quire.core.errors import RequestError
from quire.protocol.generation import Count

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
#: A wish: on, off, or how much.
Effort: TypeAlias = str | bool
#: Variables by which templates turn thinking on and off.
SWITCHES = ("enable_thinking", "thinking")


class Thinking(msgspec.Struct, kw_only=True):
    """``thinking`` of Anthropic, and of DeepSeek, GLM and Kimi; a budget cannot be kept."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def on(self) -> bool:
        """Whether the model is to think before it answers; ``between_tools`` is not that."""
        return self.type in ("enabled", "adaptive")


class Reasoning(msgspec.Struct, kw_only=True):
    """``reasoning`` of OpenRouter; ``max_tokens``, a budget, turns it on and cannot be kept."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Count | None = None


def is_off(effort: Effort) -> bool:
    """Return whether the model is not to think."""
    return effort in (False, "none")


def one_effort(
    efforts: Sequence[tuple[str, Effort]], template_kwargs: Mapping[str, Any] | None
) -> Effort | None:
    """Return what fields say together; how much wins over on. None where they say nothing.

    Args:
        efforts: The fields' names and values.
        template_kwargs: The request's own variables of a template. They win over how much, and
            may not contradict on or off.

    Raises:
        RequestError: Two contradict each other; ``param`` is the second.
    """
    for first, said in efforts:
        for name, value in efforts:
            both_say_how_much = isinstance(said, str) and isinstance(value, str)
            if is_off(said) != is_off(value) or (both_say_how_much and said != value):
                raise contradiction(name, value, first, said)
    given = {name: (template_kwargs or {}).get(name) for name in SWITCHES}
    for name, value in efforts:
        for variable, own in given.items():
            if isinstance(value, bool) and isinstance(own, bool) and own != value:
                raise contradiction(name, value, f"chat_template_kwargs.{variable}", own)
    values = [value for _, value in efforts]
    return next(
        (value for value in values if isinstance(value, str)), values[0] if values else None
    )


def contradiction(name: str, value: Any, other: str, said: Any) -> RequestError:
    """Return the error that two fields ask for different things."""
    shown = [msgspec.json.encode(one).decode() for one in (value, said)]
    return RequestError(
        f"[{name}] must not contradict {other}; got {shown[0]} and {shown[1]}. Send one of them.",
        name,
    )

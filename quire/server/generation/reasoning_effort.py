"""What ``reasoning_effort`` means to a chat template; the effort itself is the model's."""

from __future__ import annotations

from typing import Any

from quire.text.chat_template import ChatTemplate

#: Variables by which templates turn thinking on and off.
_SWITCHES = ("enable_thinking", "thinking")


def effort_kwargs(
    effort: str | None, given: dict[str, Any] | None, template: ChatTemplate | None
) -> dict[str, Any] | None:
    """Return the variables of a template for a request.

    Args:
        effort: What the request says of it: ``none``, ``low``, ``medium``, ``high`` ...
        given: Its own ``chat_template_kwargs``, which win.
        template: Of the model.
    """
    if effort is None or template is None:
        return given
    settings: dict[str, Any] = {
        name: effort != "none" for name in _SWITCHES if template.reads(name)
    }
    if template.reads("reasoning_effort"):
        settings["reasoning_effort"] = effort
    return settings | (given or {})


def has_effect(effort: str, template: ChatTemplate | None) -> bool:
    """Return whether a template can tell the model of the effort that is asked for."""
    if template is None:
        return False
    switched = effort == "none" and any(map(template.reads, _SWITCHES))
    return switched or template.reads("reasoning_effort")

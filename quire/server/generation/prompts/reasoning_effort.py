"""Template variables for a request to think more, less or not at all."""

from __future__ import annotations

from typing import Any

from quire.protocol.request_body import RequestBody
from quire.protocol.thinking import SWITCHES, Effort, is_off
from quire.server.generation.service import Service
from quire.text.templates.chat_template import ChatTemplate


def effort_kwargs(
    effort: Effort | None, given: dict[str, Any] | None, template: ChatTemplate | None
) -> dict[str, Any] | None:
    """Return the variables of a template for a request.

    Args:
        effort: The request's effort: ``none``, ``low``, ``medium``, ``high`` ..., or a truth value
            for whether the model is to think.
        given: The request's ``chat_template_kwargs``, which win.
        template: The model's template.
    """
    if effort is None or template is None:
        return given
    settings: dict[str, Any] = {
        name: not is_off(effort) for name in SWITCHES if template.reads(name)
    }
    if template.reads("reasoning_effort") and effort is not True:
        settings["reasoning_effort"] = effort or "none"
    return settings | (given or {})


def has_effect(effort: Effort, template: ChatTemplate | None) -> bool:
    """Return whether a template can tell the model of the effort that is asked for."""
    if template is None:
        return False
    switched = (effort is True or is_off(effort)) and any(map(template.reads, SWITCHES))
    return switched or (effort is not True and template.reads("reasoning_effort"))


def idle_efforts(service: Service, body: RequestBody) -> list[str]:
    """Return the fields on thinking that do nothing; a model that always thinks keeps to *on*."""
    template = service.engine.tokenizer.chat_template
    thinks = service.formats.reasoning is not None
    return [
        name
        for name, effort in body.efforts()
        if not has_effect(effort, template) and not (effort is True and thinks)
    ]

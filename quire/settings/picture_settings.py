"""Reads how many pictures a prompt may have, in the forms that vLLM takes."""

from __future__ import annotations

import json

from quire.core.errors import ConfigError


def parse_pictures_per_prompt(text: str | None) -> int | None:
    """Return the most pictures of a prompt; None for as many as the context holds.

    Args:
        text: The setting, ``{"image": 4}`` or ``image=4``; other kinds than pictures are not
            available, and may be 0 alone.

    Raises:
        ConfigError: The text has neither form.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        pairs = [part.partition("=") for part in text.split(",")]
        value = {name.strip(): _count(number) for name, _, number in pairs}
    if not isinstance(value, dict) or not value or not all(_is_count(n) for n in value.values()):
        raise ConfigError(
            '[config] --limit-mm-per-prompt must be image=N or {"image": N}, N being 0 or more; '
            f"got {text!r:.80}."
        )
    for name, count in value.items():
        if name != "image" and count:
            raise ConfigError(
                f"[config] --limit-mm-per-prompt: models read texts and pictures here; got {name}."
            )
    found: int | None = value.get("image")
    return found


def _count(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

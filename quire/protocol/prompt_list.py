"""One or many prompts in a field, as completions and embeddings have them."""

from __future__ import annotations

from typing import TypeAlias

from quire.core.errors import RequestError
from quire.protocol.generation import TokenId

MAX_PROMPTS = 1024
PromptField: TypeAlias = str | list[str | TokenId | list[TokenId]]


def read_prompts(value: PromptField, field: str) -> list[str | list[int]]:
    """Return the prompts, each as text or token ids.

    Args:
        value: A text, a list of texts, a list of token ids or a list of such lists.
        field: The field's name, for errors.

    Raises:
        RequestError: The value holds no prompt, too many, or a list of mixed kinds.
    """
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise RequestError(
            f"[{field}] must be a list of one kind: texts, token ids or lists of token ids; "
            f"got {', '.join(sorted(kind.__name__ for kind in kinds))}.",
            field,
        )
    if kinds == {int}:
        return [value]  # type: ignore[list-item]
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise RequestError(
            f"[{field}] must hold 1 to {MAX_PROMPTS} prompts; got {len(value)}.", field
        )
    return value  # type: ignore[return-value]

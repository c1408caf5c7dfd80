"""Element types by all their names: those of strings, and of torch's objects without torch."""

from __future__ import annotations

from typing import Any

from quire.core.errors import ConfigError

DTYPES = ("float32", "float16", "bfloat16")


def dtype_name(where: str, name: str, value: Any) -> str:
    """Return one of :data:`DTYPES` for text (``"bfloat16"``) or ``torch.bfloat16``.

    Raises:
        ConfigError: The value is none of them.
    """
    found = str(value).removeprefix("torch.")
    if found not in DTYPES:
        raise ConfigError(
            f"[{where}] {name} must be one of {', '.join(DTYPES)}; got {value!r:.40}."
        )
    return found

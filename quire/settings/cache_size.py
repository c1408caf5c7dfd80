"""The size of the KV cache as people write it: a number with the unit that says what it counts."""

from __future__ import annotations

import re

from quire.core.counts import parse_count
from quire.core.errors import ConfigError

#: The least fraction of memory: with a smaller one the whole exceeds what an integer holds.
LEAST_FRACTION = 1e-6
#: Settings that are a size of the KV cache, one for each unit, and a value as it is written.
SIZES = {
    "kv_cache_memory_bytes": "4GiB",
    "free_gpu_memory_fraction": "50%",
    "num_gpu_blocks_override": "2000 blocks",
    "max_tokens_in_paged_kv_cache": "64k tokens",
}
_UNITS = {"block": "num_gpu_blocks_override", "token": "max_tokens_in_paged_kv_cache"}
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_COUNTED = re.compile(r"(.*?)\s*(block|token)s?")


def read_cache_size(text: str) -> tuple[str, int | float]:
    """Return the setting that a size stands for, and its value.

    Args:
        text: A size with its unit: bytes (``4GiB``), a percentage of the memory that weights and
            scratch leave (``50%``), blocks (``2000 blocks``) or tokens (``64k tokens``).

    Raises:
        ConfigError: The text is no number with a unit.
    """
    try:
        name, size = _read(text.strip().lower())
    except (AttributeError, ValueError):  # no text, or no number
        name, size = "", 0
    if size <= 0 or (name == "free_gpu_memory_fraction" and not LEAST_FRACTION <= size <= 1):
        raise ConfigError(
            "[config] --kv-cache-size must be a number above 0 with its unit, such as "
            f"{', '.join(SIZES.values())}, and at most 100%; got {text!r:.80}."
        )
    return name, size


def _read(text: str) -> tuple[str, int | float]:
    if percent := _PERCENT.fullmatch(text):
        return "free_gpu_memory_fraction", float(percent[1]) / 100
    if counted := _COUNTED.fullmatch(text):
        return _UNITS[counted[2]], parse_count(counted[1])
    if not text[-1:].isalpha():
        raise ValueError(text)
    return "kv_cache_memory_bytes", parse_count(text)

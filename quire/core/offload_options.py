"""Settings of the tiers that KV blocks go to when the cache has no room for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire.core.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions:
    """Where KV blocks are kept outside of the cache."""

    kv_offload_bytes: int = option(
        0, "memory for KV blocks that the cache has no room for (4GiB)", sized=True
    )
    kv_offloading_size: float | None = option(None, "the same in GiB")

    @property
    def ram_bytes(self) -> int:
        """Most memory of blocks outside of the cache."""
        if self.kv_offloading_size is None:
            return self.kv_offload_bytes
        return int(self.kv_offloading_size * 2**30)

    def check(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            ConfigError: One is out of range; the message names its flag.
        """
        if self.kv_offload_bytes < 0:
            raise ConfigError(
                f"[config] --kv-offload-bytes must be at least 0; got {self.kv_offload_bytes}."
            )
        size = self.kv_offloading_size
        if size is not None and not 0 <= size < math.inf:
            raise ConfigError(
                f"[config] --kv-offloading-size must be at least 0 and finite; got {size}."
            )
        if size and self.kv_offload_bytes:
            raise ConfigError(
                "[config] --kv-offload-bytes and --kv-offloading-size must not both be given; got "
                f"{self.kv_offload_bytes} and {size}. Leave one out."
            )

"""Settings of the tiers that KV blocks go to when the cache has no room for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quire.core.errors import ConfigError
from quire.settings.option import options_of

option = options_of("memory")
DISK_BYTES = 16 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions:
    """Settings of the places that keep KV blocks outside of the cache."""

    kv_offload_bytes: int = option(
        0, "memory for KV blocks that the cache has no room for (4GiB)", sized=True
    )
    kv_offloading_size: float | None = option(None, "--kv-offload-bytes in GiB")
    kv_offload_dir: str | None = option(None, "folder that keeps KV blocks over restarts")
    kv_offload_disk_bytes: int = option(
        DISK_BYTES, "most bytes of files in --kv-offload-dir", sized=True
    )
    kv_offload_url: str | None = option(
        None, "Redis or Valkey that servers share KV blocks by: redis://host:port/db"
    )
    kv_offload_read_only: bool = option(
        False, "read blocks from the folder or server, and write none to it"
    )

    @property
    def ram_bytes(self) -> int:
        """Most memory of blocks outside of the cache."""
        if self.kv_offloading_size is None:
            return self.kv_offload_bytes
        return int(self.kv_offloading_size * 2**30)

    @property
    def num_slow(self) -> int:
        """Tiers that are not in memory."""
        return (self.kv_offload_dir is not None) + (self.kv_offload_url is not None)

    def check(self) -> None:
        """Refuse numbers that cannot be, and settings without what they are about.

        Raises:
            ConfigError: A number is out of range; the message names its flag.
        """
        if self.kv_offload_bytes < 0:
            raise ConfigError(
                f"[config] --kv-offload-bytes must be at least 0; got {self.kv_offload_bytes}."
            )
        if self.kv_offload_disk_bytes < 1:
            raise ConfigError(
                "[config] --kv-offload-disk-bytes must be at least 1; got "
                f"{self.kv_offload_disk_bytes}."
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
        for flag, value in (
            ("--kv-offload-dir", self.kv_offload_dir),
            ("--kv-offload-url", self.kv_offload_url),
        ):
            if value == "":
                raise ConfigError(f"[config] {flag} must not be empty; got ''. Leave it out.")
        if self.kv_offload_read_only and not self.num_slow:
            raise ConfigError(
                "[config] --kv-offload-read-only needs --kv-offload-dir or --kv-offload-url; got "
                "neither."
            )

"""Settings of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from quire.core.errors import ConfigError
from quire.settings.cache_size import LEAST_FRACTION, SIZES, read_cache_size
from quire.settings.option import options_of

option = options_of("memory")
KVCanaryMode: TypeAlias = Literal["off", "log", "raise"]
KVCacheDtype: TypeAlias = Literal[
    "auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3", "int8", "int4"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The KV cache: its size, type and sharing."""

    block_size: int = option(16, "tokens per KV block")
    kv_cache_size: str | None = option(
        None,
        "KV cache: 4GiB, 50% of what weights and scratch leave, '2000 blocks', '64k tokens'; "
        "default: what --memory leaves",
        common=True,
        metavar="SIZE",
    )
    memory: int | None = option(
        None,
        "bytes for weights, scratch and KV cache (8GiB); default: --gpu-memory-utilization",
        common=True,
        sized=True,
    )
    gpu_memory_utilization: float = option(
        0.9, "fraction of the device's memory (CPU: of what is free) that --memory is"
    )
    free_gpu_memory_fraction: float | None = option(
        None, "TensorRT-LLM's name: 0.5 means --kv-cache-size 50%"
    )
    kv_cache_memory_bytes: int | None = option(
        None, "vLLM's name: 4GiB means --kv-cache-size 4GiB", sized=True
    )
    max_tokens_in_paged_kv_cache: int | None = option(
        None, "TensorRT-LLM's name: 64k means --kv-cache-size '64k tokens'", sized=True
    )
    num_gpu_blocks_override: int | None = option(
        None, "vLLM's name: 2000 means --kv-cache-size '2000 blocks'"
    )
    kv_cache_dtype: KVCacheDtype = option(
        "auto",
        "type of K and V; auto: the weights'; fp8, int8: twice the tokens of 16 bits, int4: thrice",
        unavailable={"q8_0": "must be int8", "q4_0": "must be int4"},
    )
    kv_layout: Literal["paged", "static", "contiguous"] = option(
        "paged",
        "static: a request reserves blocks for --max-model-len; contiguous: in one run",
    )
    enable_prefix_caching: bool = option(
        True, "reuse KV blocks of equal prefixes", aliases=("enable-block-reuse",)
    )
    kv_canary: KVCanaryMode = option("off", "what to do on a changed checksum of a reused KV block")
    kv_cache_metrics: bool = options_of("observability")(
        False, "measure how long KV blocks live and lie idle"
    )
    use_cache: bool = option(True, "off: recompute every token each step (for teaching)")

    def __post_init__(self) -> None:
        """Read ``kv_cache_size`` to the setting of its unit, which the engine looks at.

        Raises:
            ConfigError: The size has no unit, or another setting says another size.
        """
        text = self.kv_cache_size
        if text is None:
            return
        name, size = read_cache_size(text)
        for other in SIZES:
            value = getattr(self, other)
            if value is not None and (other, value) != (name, size):
                raise ConfigError(
                    f"[config] --kv-cache-size and --{other.replace('_', '-')} must not both be "
                    f"given; got {text} and {value}. Leave one out."
                )
        object.__setattr__(self, name, size)
        object.__setattr__(self, "kv_cache_size", None)

    @property
    def hides_blocks(self) -> str:
        """The flag by which requests do not find KV blocks by content; empty where they do."""
        if self.kv_layout != "paged":
            return f"--kv-layout {self.kv_layout}"
        if not self.enable_prefix_caching:
            return "--no-enable-prefix-caching"
        return "" if self.use_cache else "--no-use-cache"

    def check(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            ConfigError: A number is out of range; the message names its flag.
        """
        for name in ("gpu_memory_utilization", "free_gpu_memory_fraction"):
            fraction = getattr(self, name)
            if fraction is not None and not LEAST_FRACTION <= fraction <= 1.0:
                flag = f"--{name.replace('_', '-')}"
                rule = f"must be in (0, 1], {LEAST_FRACTION:g} at least"
                raise ConfigError(f"[config] {flag} {rule}; got {fraction}.")
        if self.free_gpu_memory_fraction is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError(
                "[config] --free-gpu-memory-fraction and --kv-cache-memory-bytes must not both be "
                f"given; got {self.free_gpu_memory_fraction} and {self.kv_cache_memory_bytes}. "
                "Leave one out."
            )

"""Keywords of ``LLM``, ``AsyncLLM`` and ``EngineArgs``, read to settings.

Their types are in :mod:`quire.settings.keyword_types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from quire.core.errors import ConfigError
from quire.settings.config import SETTINGS, EngineConfig
from quire.settings.known_settings import engine_settings, flag_name

#: A number of bytes or tokens: ``8589934592`` or ``"8GiB"``.
Count: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class KvCacheConfig:
    """Size and sharing of the KV cache, in TensorRT-LLM's names.

    Args:
        free_gpu_memory_fraction: Fraction of what weights and scratch leave free.
        enable_block_reuse: Whether blocks of equal prefixes are reused; None: the engine's default.
        max_tokens: Number of tokens that the cache holds, at most; with a fraction, the smaller of
            the two counts.
        max_tokens_in_paged_kv_cache: The same number, under its name in a Triton configuration.
    """

    free_gpu_memory_fraction: float | None = None
    enable_block_reuse: bool | None = None
    max_tokens: Count | None = None
    max_tokens_in_paged_kv_cache: Count | None = None

    def keywords(self) -> dict[str, Any]:
        """Return the same as settings of an engine.

        Raises:
            ConfigError: Both names of the most tokens are given, with different values.
        """
        caps = {self.max_tokens, self.max_tokens_in_paged_kv_cache} - {None}
        if len(caps) > 1:
            raise ConfigError(
                "[config] max_tokens and max_tokens_in_paged_kv_cache are the same setting; got "
                f"{self.max_tokens} and {self.max_tokens_in_paged_kv_cache}. Give one."
            )
        return {
            "free_gpu_memory_fraction": self.free_gpu_memory_fraction,
            "enable_prefix_caching": self.enable_block_reuse,
            "max_tokens_in_paged_kv_cache": caps.pop() if caps else None,
        }


def keyword_names() -> list[str]:
    """Return every keyword but ``model``, which is the first argument."""
    forms = ["kv_cache_config", "enable_block_reuse"]  # of settings
    return [*(name for name in SETTINGS if name != "model"), *forms, *engine_settings()]


def settings_help() -> str:
    """Return a line for each setting but the model: its name, and what it is."""
    lines = [
        f"        {name}: {setting.metadata['help']}"
        for name, setting in SETTINGS.items()
        if name != "model"
    ]
    return "\n".join(["    Settings, also flags of quire serve:", *lines])


def read_keywords(
    keywords: Mapping[str, Any], *, as_flags: bool = False
) -> tuple[EngineConfig, list[str]]:
    """Read settings by name; those of other engines are taken with a notice.

    Args:
        keywords: Settings of :mod:`quire.settings.config` and :mod:`quire.settings.known_settings`.
        as_flags: Whether notices name flags rather than keywords.

    Returns:
        The settings, and a line for each one that does nothing or is read as another.

    Raises:
        ConfigError: A name is unknown, a value cannot be, or a setting asks for what cannot be
            done.
    """
    given = {**keywords}
    notices = []
    known = engine_settings()
    for name in [name for name in given if name in known]:
        value = given.pop(name)
        notice = known[name].notice(*_shown(name, value, as_flags), value)
        if notice is not None:
            notices.append(notice)
    for name, value in _other_forms(given):
        if given.setdefault(name, value) != value:
            raise ConfigError(f"[config] {name} must be given once; got {given[name]} and {value}.")
    config = EngineConfig.from_keywords(**given)
    return config, notices + _speculation_notices(config, as_flags)


def _speculation_notices(config: EngineConfig, as_flags: bool) -> list[str]:
    """Return what there is to say of the methods that propose tokens."""
    asked = config.speculative.parsed()
    missing = [
        f"{_shown('speculative_config', method.method, as_flags)[1]} is not available: no tokens "
        "are proposed (the answers are the same)."
        for method in asked.methods
        if not method.is_available
    ]
    return [*asked.notices, *missing]


def _shown(name: str, value: Any, as_flags: bool) -> tuple[str, str]:
    """Return how a user wrote a setting: its name, and name and value."""
    if as_flags:
        return flag_name(name), f"{flag_name(name)} {value}"
    return name, f"{name}={value!r:.80}"


def _other_forms(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Take out further forms of settings; return the settings that they stand for."""
    found = []
    if "enable_block_reuse" in given:
        found.append(("enable_prefix_caching", given.pop("enable_block_reuse")))
    cache = given.pop("kv_cache_config", None)
    if isinstance(cache, dict):
        names = {field.name for field in fields(KvCacheConfig)}
        unknown = ", ".join(sorted(set(cache) - names))
        if unknown:
            raise ConfigError(
                f"[config] kv_cache_config may hold {', '.join(sorted(names))}; got {unknown}."
            )
        cache = KvCacheConfig(**cache)
    if cache is not None and not isinstance(cache, KvCacheConfig):
        raise ConfigError(f"[config] kv_cache_config must be KvCacheConfig; got {cache!r:.80}.")
    if cache is not None:
        found += [(name, value) for name, value in cache.keywords().items() if value is not None]
    return found

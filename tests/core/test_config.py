"""Settings as Python callers give them: every wrong type is refused by its flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("dtype", "half", "auto or float32 or float16 or bfloat16"),
        (
            "kv_cache_dtype",
            "fp8_e5m2",
            "auto or float32 or float16 or bfloat16 or fp8 or fp8_e4m3 or int8",
        ),
        ("scheduling_policy", "lifo", "fcfs or priority"),
        ("device", None, "auto or cpu or reference"),
        ("memory", "8GiB", "int or None"),
        ("memory", 1e9, "int or None"),
        ("max_num_seqs", "8", "int"),
        ("max_model_len", True, "int or None"),
        ("gpu_memory_utilization", "0.5", "float"),
        ("enable_prefix_caching", "no", "bool"),
        ("use_cache", 1, "bool"),
        ("model", 5, "str"),
        ("revision", 3, "str or None"),
        ("seed", "x", "int"),
    ],
)
def test_wrong_types_name_the_flag(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_keywords(**{name: value})
    flag = name.replace("_", "-")
    assert str(caught.value) == f"[config] --{flag} must be {rule}; got {value!r}."


@pytest.mark.parametrize(
    "settings", [{}, {"gpu_memory_utilization": 1}, {"memory": 2**30, "max_model_len": None}]
)
def test_right_types_are_taken(settings: dict[str, Any]) -> None:
    config = EngineConfig.from_keywords(**settings)
    assert config.cache.memory == settings.get("memory")


def test_a_path_is_a_model() -> None:
    assert EngineConfig.from_keywords(model=Path("a/b")).model.model == "a/b"


def test_max_logprobs_has_one_value_below_0() -> None:
    assert EngineConfig.from_keywords(max_logprobs=-1).model.max_logprobs == -1
    with pytest.raises(ConfigError, match="--max-logprobs must be -1"):
        EngineConfig.from_keywords(max_logprobs=-2)


def test_threads_have_a_limit() -> None:
    assert EngineConfig.from_keywords(threads=1024).parallel.threads == 1024
    with pytest.raises(ConfigError, match="--threads must be at most 1024; got 9999"):
        EngineConfig.from_keywords(threads=9999)

"""Settings as Python callers give them: every wrong type is refused by its flag."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.settings.config import EngineConfig


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("dtype", "int3", "auto or float32 or float16 or bfloat16"),
        (
            "kv_cache_dtype",
            "fp8_e5m2",
            "auto or float32 or float16 or bfloat16 or fp8 or fp8_e4m3 or int8 or int4",
        ),
        ("scheduling_policy", "lifo", "fcfs or priority"),
        ("device", None, "auto or cpu or reference"),
        ("memory", "8Gx", "a whole number such as 4096, 4k or 8GiB"),
        ("served_model_name", ("a", 5), "text or a list of texts"),
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


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"memory": "8GiB"}, "cache.memory", 8 * 2**30),
        ({"kv_cache_memory_bytes": "512MiB"}, "cache.kv_cache_memory_bytes", 2**29),
        ({"max_model_len": "4k"}, "model.max_model_len", 4096),
        ({"max_model_len": -1}, "model.max_model_len", None),
        ({"dtype": "half"}, "model.dtype", "float16"),
        ({"dtype": "float"}, "model.dtype", "float32"),
        ({"generation_config": "vllm"}, "model.generation_config", "none"),
        ({"served_model_name": "a"}, "model.served_model_name", ("a",)),
        ({"served_model_name": ["a", "b"]}, "model.served_model_name", ("a", "b")),
        (
            {"default_chat_template_kwargs": {"enable_thinking": False}},
            "model.default_chat_template_kwargs",
            '{"enable_thinking": false}',
        ),
    ],
)
def test_further_forms_of_values(given: dict[str, Any], field: str, value: Any) -> None:
    assert attrgetter(field)(EngineConfig.from_keywords(**given)) == value


def test_a_dtype_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert EngineConfig.from_keywords(dtype=torch.float16).model.dtype == "float16"


@pytest.mark.parametrize("text", ["{", "[1]", "5", "null x"])
def test_settings_that_hold_json_say_so(text: str) -> None:
    with pytest.raises(ConfigError, match="--override-generation-config must be a JSON object"):
        EngineConfig.from_keywords(override_generation_config=text)


def test_two_sizes_of_the_cache_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="must not both be given; got 0.5 and 1024"):
        EngineConfig.from_keywords(free_gpu_memory_fraction=0.5, kv_cache_memory_bytes=1024)


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

"""Keywords of Python callers: types for editors, other engines' settings, the cache's object."""

from __future__ import annotations

from os import PathLike
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from quire.core.errors import ConfigError
from quire.settings.config import SETTINGS, EngineConfig
from quire.settings.engine_keywords import KvCacheConfig, read_keywords
from quire.settings.keyword_types import stub
from quire.settings.known_settings import QUANTIZATIONS, engine_settings


def choices(hint: Any) -> set[Any]:
    """Return the types and words that a hint allows."""
    if get_origin(hint) is None:
        return {hint}
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    inner = set().union(*map(choices, get_args(hint)))
    return inner if get_origin(hint) in (Union, UnionType) else {get_origin(hint)}


def test_the_types_for_editors_are_those_of_the_settings() -> None:
    """tools/typed_users.py shows what a type checker makes of them."""
    made: dict[str, Any] = {}
    exec(compile(stub(), "stub", "exec", dont_inherit=True), made)
    hints = get_type_hints(made["EngineKeywords"])
    typed = {name: choices(hint) for name, hint in hints.items()}
    forms = {"kv_cache_config", "enable_block_reuse"}
    assert set(typed) == set(SETTINGS) - {"model"} | set(engine_settings()) | forms
    assert typed["quantization"] >= {*QUANTIZATIONS, "int4", type(None)}
    assert typed["dtype"] >= {"auto", "float16", "half", "float"}
    assert typed["memory"] == {int, str, type(None)} and typed["max_num_seqs"] == {int}
    assert typed["tokenizer"] == {str, PathLike, type(None)}
    assert dict in typed["speculative_config"] and typed["served_model_name"] >= {str, list}


def test_settings_of_other_engines_are_taken_with_a_notice() -> None:
    config, notices = read_keywords(
        {
            "model": "m",
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 2,
            "enforce_eager": True,
            "trust_remote_code": False,
            "swap_space": 4,
            "dtype": "half",
        }
    )
    assert config == EngineConfig.from_keywords(model="m", dtype="float16")
    assert notices == [
        "prefill_context_parallel_size=2 is not available: a context is not divided over ranks.",
        "enforce_eager=True changes nothing: there are no graphs to capture and no code to "
        "compile.",
        "swap_space=4 changes nothing: see --kv-offload-bytes.",
    ]


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size must be at least 1; got 0"),
        ({"decode_context_parallel_size": "two"}, "must be a whole number of at least 1; got"),
        ({"nnodes": 2}, "--nnodes must divide the 1 ranks"),
        ({"nnodes": 2, "tensor_parallel_size": 2, "node_rank": 2}, "--node-rank must be in 0..1"),
        ({"master_port": 0}, "--master-port must be in 1..65535; got 0"),
        ({"logits_processors": [print]}, "names code that would run in the engine"),
        ({"hf_overrides": {"rope_theta": 5}}, "would change the model"),
        ({"logprobs_mode": "processed_logprobs"}, "must be raw_logprobs"),
        ({"pages": 3}, "settings must be known; got pages"),
        ({"quantization": "int1"}, "--quantization must be int8 or"),
        ({"quantization": None, "dtype": "fp8"}, "--dtype must be"),
    ],
)
def test_what_cannot_be_done_is_an_error(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keywords(keywords)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_other_engines_quantizations_wait_for_the_checkpoint(name: str) -> None:
    """Of a checkpoint that is so already it was said that its files are not read."""
    config, notices = read_keywords({"quantization": name})
    assert config.model.quantization == name and not notices


def test_the_cache_as_an_object() -> None:
    config, notices = read_keywords(
        {"kv_cache_config": KvCacheConfig(free_gpu_memory_fraction=0.85, enable_block_reuse=False)}
    )
    assert config.cache.free_gpu_memory_fraction == 0.85
    assert not config.cache.enable_prefix_caching and not notices
    for given in (
        KvCacheConfig(max_tokens="128k"),
        KvCacheConfig(max_tokens_in_paged_kv_cache=131072),
        {"max_tokens": 131072},
    ):
        config, _ = read_keywords({"kv_cache_config": given, "enable_block_reuse": True})
        off, _ = read_keywords({"kv_cache_config": given, "enable_prefix_caching": False})
        assert not off.cache.enable_prefix_caching, "what was not said says nothing"
        assert config.cache.max_tokens_in_paged_kv_cache == 131072
        assert config.cache.enable_prefix_caching


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"kv_cache_config": KvCacheConfig(max_tokens=1, max_tokens_in_paged_kv_cache=2)}, "same"),
        ({"kv_cache_config": {"blocks": 3}}, "kv_cache_config may hold enable_block_reuse"),
        ({"kv_cache_config": 0.5}, "kv_cache_config must be KvCacheConfig; got 0.5"),
        (
            {
                "kv_cache_config": KvCacheConfig(enable_block_reuse=True),
                "enable_prefix_caching": False,
            },
            "enable_prefix_caching must be given once; got False and True",
        ),
        ({"kv_cache_config": KvCacheConfig(1.5)}, "--free-gpu-memory-fraction must be in (0, 1]"),
    ],
)
def test_a_wrong_cache_object_is_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keywords(keywords)
    assert words in str(caught.value)

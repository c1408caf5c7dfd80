"""Each setting left open gets a value and a line that says why; impossible ones are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.settings.config import EngineConfig
from quire.settings.known_settings import QUANTIZATIONS
from quire.settings.resolve import ResolvedConfig, resolve
from quire.system.machine import Machine
from tests.tiny_model import TINY_MODEL

MACHINE = Machine(num_cores=6, total_bytes=8 * 2**30, free_bytes=4 * 2**30)
MODEL = replace(TINY_MODEL, dtype="bfloat16")


def resolved(**keywords: Any) -> ResolvedConfig:
    return resolve(EngineConfig.from_keywords(**keywords), MACHINE, MODEL)


def test_everything_open() -> None:
    found = resolved()
    assert (found.device, found.threads) == ("cpu", 6)
    assert (found.dtype, found.kv_cache_dtype) == ("bfloat16", "bfloat16")
    assert found.max_model_len == 4096
    assert found.memory_bytes == int(0.9 * MACHINE.free_bytes)
    names = [line.split(" = ")[0] for line in found.choices]
    assert names == ["device", "threads", "dtype", "kv_cache_dtype", "max_model_len", "memory"]


def test_everything_given_leaves_nothing_to_say() -> None:
    found = resolved(
        device="reference",
        threads=2,
        dtype="float32",
        kv_cache_dtype="float16",
        max_model_len=64,
        memory=2**30,
    )
    assert found.choices == ()
    assert (found.device, found.threads, found.dtype) == ("reference", 2, "float32")
    assert (found.kv_cache_dtype, found.max_model_len) == ("float16", 64)
    assert found.memory_bytes == 2**30


def test_more_memory_than_is_free_now_is_pointed_out() -> None:
    found = resolved(memory=6 * 2**30)
    assert found.memory_bytes == 6 * 2**30
    assert "memory = 6.00 GiB: as given, though only 4.00 GiB are free now" in found.choices


def test_kv_cache_follows_the_dtype_that_was_chosen() -> None:
    assert resolved(dtype="float32").kv_cache_dtype == "float32"


def test_without_chunked_prefill_a_prompt_fits_the_budget() -> None:
    found = resolved(enable_chunked_prefill=False, max_num_batched_tokens=512)
    assert found.max_model_len == 512
    assert any("without chunked prefill" in line for line in found.choices)


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"max_model_len": 4097}, ["--max-model-len", "4096", "4097"]),
        ({"memory": 9 * 2**30}, ["--memory", "8.00 GiB", "9.00 GiB"]),
    ],
)
def test_impossible_settings_name_the_flag_and_both_numbers(
    keywords: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        resolved(**keywords)
    assert all(word in str(error.value) for word in words)


def test_fp8_is_e4m3() -> None:
    found = resolved(kv_cache_dtype="fp8")
    assert found.kv_cache_dtype == "fp8_e4m3"
    assert any(line.startswith("kv_cache_dtype = fp8_e4m3") for line in found.choices)
    for name in ("int8", "int4"):
        assert resolved(kv_cache_dtype=name).kv_cache_dtype == name


def test_more_proposed_tokens_than_a_request_may_have() -> None:
    method = {"method": "ngram", "num_speculative_tokens": 8}
    assert resolved(max_model_len=9, speculative_config=method).max_model_len == 9
    with pytest.raises(ConfigError, match=r'"num_speculative_tokens" must be less than the 8 tok'):
        resolved(max_model_len=8, speculative_config=method)


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_what_a_checkpoint_is_asked_to_be(name: str) -> None:
    """The engine rounded to int4 what is AWQ already, which is an error."""
    config, (ours, why) = EngineConfig.from_keywords(quantization=name), QUANTIZATIONS[name]
    of_floats = resolve(config, MACHINE, MODEL)
    assert of_floats.config.model.quantization == ours
    (notice,) = of_floats.notices
    assert notice.startswith(f"--quantization {name} ") and notice.endswith(f": {why}.")
    stored = {"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"}.get(
        name, name
    )
    of_files = resolve(config, MACHINE, replace(MODEL, stored_quantization=stored))
    assert of_files.config.model.quantization is None and not of_files.notices
    other = replace(MODEL, stored_quantization="hqq" if name != "hqq" else "awq")
    with pytest.raises(ConfigError, match=rf"must be what the checkpoint has, \w+; got {name}"):
        resolve(config, MACHINE, other)

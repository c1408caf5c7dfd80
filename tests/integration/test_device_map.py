"""A model that is larger than what its first device may hold, over two devices: the same tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.llm.planning.memory_needs import memory_needs
from quire.settings.config import EngineConfig
from quire.system.machine import read_machine
from tools.random_gguf import random_gguf

SMALL: dict[str, Any] = {
    "threads": 1, "max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 128,
}  # fmt: skip
#: Models with tied and own heads, of experts, rounded at load, and of a file.
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("tiny-llama", {}),
    ("tied", {}),
    ("tiny-mixtral", {}),
    ("tiny-llama", {"quantization": "int4", "activations": "fp32"}),
    ("Q8_0", {"activations": "fp32"}),
]


def least(model: Path, settings: dict[str, Any]) -> int:
    """Return the bytes with which the model just runs in one process."""
    config = EngineConfig.from_keywords(model=str(model), **settings)
    return memory_needs(config, read_machine()).least


def generate(model: Path, prompt: list[int], **settings: Any) -> tuple[Any, dict[str, float]]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(model), **settings) as llm:
        (answer,) = llm.generate([prompt], params)
        return answer.outputs[0].token_ids, llm.engine.stats()


@pytest.mark.usefixtures("ranks_have_torch")
@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_a_model_that_the_first_device_does_not_hold(
    checkpoint: Callable[..., Path], tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    model = tmp_path / "model.gguf"
    if name == "Q8_0":
        random_gguf(model, name, "tiny-llama")
    elif name == "tied":
        model = checkpoint("tiny-llama", tie_word_embeddings=True)
    else:
        model = checkpoint(name)
    settings = {"dtype": "float32", **SMALL, **settings}
    prompt = np.random.default_rng(3).integers(0, 256, 40).tolist()
    alone, _ = generate(model, prompt, **settings)
    most = least(model, settings) - 1
    placed, stats = generate(
        model,
        prompt,
        device_map="auto",
        max_memory={"cpu": most, "reference": "1GiB"},
        **settings,
    )
    assert placed == alone
    assert stats["num_ranks"] == 2
    pools = ("weights", "kv_cache", "scratch")
    held = [stats[f'rank_memory_bytes{{rank="0",pool="{pool}"}}'] for pool in pools]
    assert sum(held) <= most


def test_one_device_with_room_changes_nothing(
    checkpoint: Callable[..., Path], quire_log: list[logging.LogRecord]
) -> None:
    model, prompt = checkpoint("tiny-llama"), [5, 6, 7]
    logging.getLogger("quire").setLevel(logging.INFO)
    alone, before = generate(model, prompt, **SMALL)
    placed, after = generate(model, prompt, device_map="auto", **SMALL)
    assert placed == alone and after["num_ranks"] == 1
    assert any("device_map = one stage: cpu" in record.getMessage() for record in quire_log)
    kept = 'memory_bytes{pool="kv_cache"}'
    assert before[kept] == after[kept]


def test_the_limit_of_one_device_is_kept(checkpoint: Callable[..., Path]) -> None:
    model = checkpoint("tiny-llama")
    most = least(model, SMALL)
    placed, stats = generate(model, [5, 6, 7], device_map="auto", max_memory={"cpu": most}, **SMALL)
    pools = ("weights", "kv_cache", "scratch")
    assert sum(stats[f'memory_bytes{{pool="{pool}"}}'] for pool in pools) <= most


def test_what_fits_nowhere_is_refused_before_it_is_read(checkpoint: Callable[..., Path]) -> None:
    model = checkpoint("tiny-llama")
    with pytest.raises(ConfigError, match="--device-map auto must place .* on one device; got"):
        LLM(str(model), device_map="auto", max_memory="cpu=100KiB", **SMALL)


@pytest.mark.parametrize("name", ["kv_cache_memory_bytes", "num_gpu_blocks_override"])
def test_the_context_is_what_room_is_made_for(checkpoint: Callable[..., Path], name: str) -> None:
    with pytest.raises(ConfigError, match=f"got --{name.replace('_', '-')} 1000 as well"):
        LLM(str(checkpoint("tiny-llama")), device_map="auto", **{**SMALL, name: 1000})

"""Models whose weights are rounded at load."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.settings.config import EngineConfig

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-mixtral"])
def test_exact_activations_equal_the_dequantized_reference(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], family: str
) -> None:
    """The same tokens and nearly the same logprobs on the reference."""
    settings = {"quantization": "int8", "activations": "fp32", "dtype": "float32"}
    (prompt,) = prompts(20)
    results = []
    for device in ("cpu", "reference"):
        llm = create_llm(family, device=device, **settings)
        results.append(llm.generate(prompt, GREEDY)[0].outputs[0])
    assert results[0].token_ids == results[1].token_ids
    ours, theirs = (result.cumulative_logprob for result in results)
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("name", ["int8", "int6", "int5", "int4", "nf4", "int3", "int2"])
def test_every_scheme_runs(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], name: str
) -> None:
    (prompt,) = prompts(20)
    output = create_llm(quantization=name).generate(prompt, GREEDY)[0].outputs[0]
    assert len(output.token_ids) == 8
    assert np.isfinite(output.cumulative_logprob)


def test_what_stays_in_higher_precision_is_said_in_one_line(
    create_llm: Callable[..., LLM], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="quire"):
        create_llm("tiny-mixtral", quantization="int4", verbose=True)
    (line,) = [m for m in caplog.messages if "higher precision" in m]
    assert "matrices are quantized" in line
    for kept in ("model.layers.*.block_sparse_moe.gate.weight", "model.norm.weight"):
        assert kept in line
    assert "q_proj" not in line


def test_settings_that_do_nothing_are_refused(
    create_llm: Callable[..., LLM], checkpoint: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError, match="--quantization-group-size needs --quantization"):
        EngineConfig.from_keywords(quantization_group_size=32)
    with pytest.raises(ConfigError, match="must be 16, 32, 64, 128, or 0"):
        EngineConfig.from_keywords(quantization="int4", quantization_group_size=48)
    with pytest.raises(ConfigError, match="needs quantized weights"):
        create_llm(activations="fp32")

"""``quire merge``: the merged model answers as the adapter does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.cli.main import run
from tools.random_adapter import random_adapter

TARGETS = {
    "tiny-llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "tiny-gpt2": ("c_attn", "c_proj", "c_fc"),
}


@pytest.mark.parametrize("preset", TARGETS)
def test_the_merged_model_answers_as_the_adapter_does(
    checkpoint: Callable[..., Path], tmp_path: Path, device: str, small: dict[str, Any], preset: str
) -> None:
    base = checkpoint(preset)
    adapter = random_adapter(base, tmp_path / "a", targets=TARGETS[preset])
    assert run(["merge", str(base), str(adapter), str(tmp_path / "out")]) == 0
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    prompt = list(range(3, 43))
    settings = {"device": device, "dtype": "float32", **small}

    def logprobs(model: Path, lora: LoRARequest | None, **more: Any) -> np.ndarray:
        with LLM(str(model), **settings, **more) as llm:
            (output,) = llm.generate([prompt], params, False, lora)
        return np.array([next(iter(one.values())).logprob for one in output.prompt_logprobs[1:]])

    merged = logprobs(tmp_path / "out", None)
    adapted = logprobs(base, LoRARequest("a", 1, str(adapter)), enable_lora=True)
    plain = logprobs(base, None)
    assert np.abs(merged - adapted).max() <= 1e-4 * np.abs(adapted).max()
    assert np.abs(plain - adapted).max() > 0.3


def test_what_cannot_be_merged_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = checkpoint("tiny-llama"), checkpoint("tiny-gpt2")
    adapter = random_adapter(base, tmp_path / "a")
    cases = [
        ([base, tmp_path / "none", tmp_path / "out"], "must be readable"),
        ([other, adapter, tmp_path / "out"], "must be for linears of the model"),
        ([base, adapter, adapter], "OUT must be a new or an empty folder"),
    ]
    for words, message in cases:
        assert run(["merge", *map(str, words)]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

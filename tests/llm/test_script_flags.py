"""Settings as flags of a script's own parser, as vLLM's examples take them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from quire import LLM, EngineArgs, FlexibleArgumentParser
from quire.settings.config import SETTINGS
from quire.settings.known_settings import engine_settings


def parser() -> FlexibleArgumentParser:
    made = FlexibleArgumentParser()
    assert EngineArgs.add_cli_args(made) is made
    made.add_argument_group("Sampling parameters").add_argument("--max-tokens", type=int)
    return made


def test_an_example_of_vllm_had_no_flags(
    folder: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``EngineArgs.add_cli_args``, with which vLLM's basic examples begin, was not there."""
    own = ["--max_model_len", "1k", "--memory=64MiB", "--max-num-seqs", "2", "--enforce-eager"]
    monkeypatch.setattr(sys, "argv", ["generate.py", *own, "--max-tokens=3", "--threads", "1"])
    script = parser()
    script.set_defaults(model=str(folder), device=device)
    args = vars(script.parse_args())
    max_tokens = args.pop("max_tokens")
    with LLM(**args) as llm:
        params = llm.get_default_sampling_params()
        params.max_tokens, params.ignore_eos = max_tokens, True
        (output,) = llm.generate(["Hello"], params)
    assert len(output.outputs[0].token_ids) == 3


def test_flags_are_settings_again() -> None:
    flags = ["--model", "m", "--max-model-len", "auto", "--seed=7", "--no-enable-prefix-caching"]
    flags += ["--served-model-name", "a", "b", "-tp", "2", "--gpu-memory-utilization", "0.5"]
    flags += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    args = EngineArgs.from_cli_args(parser().parse_args([*flags, "--max-tokens", "3"]))
    method = {"method": "ngram", "num_speculative_tokens": 3}
    same = EngineArgs(
        "m",
        seed=7,
        enable_prefix_caching=False,
        served_model_name=["a", "b"],
        tensor_parallel_size=2,
        gpu_memory_utilization=0.5,
        speculative_config=method,
    )
    assert args.config == same.config
    assert EngineArgs.from_cli_args(parser().parse_args([])).config == EngineArgs().config


def test_every_setting_has_a_flag_and_the_script_s_own_stay() -> None:
    given = vars(parser().parse_args([]))
    assert {*SETTINGS, *engine_settings()} <= given.keys()
    own = argparse.ArgumentParser()
    own.add_argument("--seed", type=float, dest="mine")
    EngineArgs.add_cli_args(own)
    assert own.parse_args(["--seed", "0.5"]).mine == 0.5
    text = " ".join(own.format_help().split())
    assert "recompute every token each step (for teaching) [on] --kv-offload" in text


@pytest.mark.parametrize("value", ["x", "1.5"])
def test_a_number_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--max-num-seqs", value])
    assert "is not a whole number such as 4096, 4k or 8GiB" in capsys.readouterr().err

"""``generation_config.json``: defaults, endings, and what a damaged file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError, ModelLoadError
from quire.llm.requests.generation_defaults import GenerationDefaults, read_generation_config
from quire.store.named_models import catalogue


def write(folder: Path, value: Any) -> Path:
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / "generation_config.json").write_text(text)
    return folder


def test_settings_are_read_by_our_names(tmp_path: Path) -> None:
    values = {
        "temperature": 0.5,
        "top_k": 3,
        "max_new_tokens": 9,
        "eos_token_id": [2, 0],
        "top_p": None,
        "transformers_version": "5",
    }
    found = read_generation_config(write(tmp_path, values), "auto")
    assert found.sampling == {"temperature": 0.5, "top_k": 3, "max_tokens": 9}
    assert found.eos_token_ids == (2, 0)


def test_no_sampling_means_greedy(tmp_path: Path) -> None:
    found = read_generation_config(write(tmp_path, {"do_sample": False}), "auto")
    assert found.sampling == {"temperature": 0.0}


def test_endings_are_read_even_when_defaults_are_not(tmp_path: Path) -> None:
    found = read_generation_config(write(tmp_path, {"top_k": 3, "eos_token_id": 7}), "none")
    assert found == GenerationDefaults({}, (7,))


def test_without_a_file_there_are_no_defaults(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path, "auto") == GenerationDefaults()


@pytest.mark.parametrize(
    "value", ["{", [1], {"temperature": -1.0}, {"top_p": "high"}, {"eos_token_id": "x"}]
)
def test_a_damaged_file_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        read_generation_config(write(tmp_path, value), "auto")


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--generation-config must be auto or none; got vllm"):
        read_generation_config(tmp_path, "vllm")


@pytest.mark.parametrize("name", catalogue())
def test_what_the_makers_of_a_named_model_recommend_is_known(name, tmp_path):
    sampling = dict(catalogue()[name].sampling)
    assert read_generation_config(tmp_path, "auto", sampling).sampling == sampling
    found = read_generation_config(tmp_path, "auto", {"top_k": 1}, recommended=sampling)
    assert found.sampling == sampling | {"top_k": 1}
    assert read_generation_config(tmp_path, "none", recommended=sampling).sampling == {}

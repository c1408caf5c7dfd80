"""What pictures take of memory is planned for, and as much as a start's settings admit."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from quire.models.config.config_reader import read_model_config
from quire.runner.memory.picture_memory import MOST_KEPT_BYTES, kept_bytes, picture_bytes
from quire.settings.config import EngineConfig
from quire.settings.resolve import resolve
from quire.system.machine import read_machine
from tests.picture_families import FAMILIES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Qwen2-VL, whose pictures have any size."""
    folder = tmp_path_factory.mktemp("qwen2_vl")
    FAMILIES["qwen2_vl"].write(folder)
    return folder


def settings(folder, **given):
    config = read_model_config(folder)
    options = EngineConfig.from_keywords(model=str(folder), max_num_batched_tokens=64, **given)
    return config, resolve(options, read_machine(), config)


def planned(folder, **given):
    return picture_bytes(*settings(folder, **given), 2**20)


def test_what_no_prompt_holds_is_not_planned_for(folder):
    whole = planned(folder)
    assert whole > planned(folder, max_model_len=32) > 0
    assert planned(folder, limit_mm_per_prompt="image=0") == 0
    assert planned(folder, limit_mm_per_prompt="image=1") == whole


def test_pictures_of_a_step_are_kept_in_any_case(folder):
    config, resolved = settings(folder)
    a_step = 4 * config.hidden_size * (64 + 2 * 64)
    assert kept_bytes(config, resolved, weight_bytes=0) == a_step
    assert kept_bytes(config, resolved, weight_bytes=8 * a_step) == 2 * a_step
    assert kept_bytes(config, resolved, weight_bytes=2**40) == MOST_KEPT_BYTES

"""Whether a model fits, as told before it is loaded, and as the engine then finds."""

import pytest

from quire import LLM
from quire.core.errors import ConfigError
from quire.core.machine import Machine
from quire.llm.fit import fit_files, fit_named, largest_that_fits
from quire.models.hub import resolve_model
from quire.models.named_models import catalogue, named_model


def machine(free_bytes):
    return Machine(2, 2 * free_bytes, free_bytes)


@pytest.mark.parametrize("mebibytes", [8, 30, 35, 64])
def test_what_is_told_is_what_the_engine_finds(mebibytes, device):
    fit = fit_files(resolve_model("quire-tiny"), machine(mebibytes * 2**20 * 10 // 9))
    assert fit.budget_bytes == pytest.approx(mebibytes * 2**20, abs=1)
    settings = {"device": device, "memory": fit.budget_bytes, "threads": 1}
    if not fit.fits:
        with pytest.raises(ConfigError, match="memory"):
            LLM("quire-tiny", **settings)
        return
    with LLM("quire-tiny", **settings) as llm:
        assert llm.engine.max_model_len <= 1.1 * fit.context
        assert llm.engine.max_model_len >= 0.9 * fit.context


def test_the_largest_of_a_family_that_fits():
    family = named_model("qwen3")
    models = {n: largest_that_fits(family, machine(n * 10**9)) for n in (0, 1, 2, 4, 64)}
    chosen = {gigabytes: model and model.name for gigabytes, model in models.items()}
    assert chosen == {
        0: None, 1: "qwen3:0.6b-q8_0", 2: "qwen3:1.7b", 4: "qwen3:4b-instruct-2507", 64: "qwen3:8b",
    }  # fmt: skip
    assert all(not fit_named(model, machine(10**8)).fits for model in catalogue().values())

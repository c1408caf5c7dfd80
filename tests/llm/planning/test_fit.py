"""Whether a model fits, as told before it is loaded, and as the engine then finds."""

import pytest

from quire import LLM
from quire.core.errors import ConfigError
from quire.llm.planning.fit import fit_files
from quire.store.hub import resolve_model
from quire.system.machine import Machine


@pytest.mark.parametrize("mebibytes", [8, 30, 35, 64])
def test_what_is_told_is_what_the_engine_finds(mebibytes, device):
    free_bytes = mebibytes * 2**20 * 10 // 9
    fit = fit_files(resolve_model("quire-tiny"), Machine(2, 2 * free_bytes, free_bytes))
    assert fit.budget_bytes == pytest.approx(mebibytes * 2**20, abs=1)
    settings = {"device": device, "memory": fit.budget_bytes, "threads": 1}
    if not fit.fits:
        with pytest.raises(ConfigError, match="memory"):
            LLM("quire-tiny", **settings)
        return
    with LLM("quire-tiny", **settings) as llm:
        assert llm.engine.max_model_len <= 1.1 * fit.context
        assert llm.engine.max_model_len >= 0.9 * fit.context

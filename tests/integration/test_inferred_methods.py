"""Settings that name a drafter and no method."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM
from quire.checkpoints.embedded import ASSETS
from quire.core.errors import ConfigError
from quire.llm.planning.inferred_methods import infer_methods
from quire.llm.planning.memory_needs import memory_needs
from quire.settings.config import EngineConfig
from quire.system.machine import read_machine
from tests.draft_heads import medusa_tensors, write_head

HEADS = ASSETS / "quire-tiny-heads"
DRAFT = ASSETS / "quire-tiny-draft"
MODELS = {
    "medusa": HEADS / "medusa",
    "eagle": HEADS / "eagle",
    "eagle3": HEADS / "eagle3",
    "mtp": HEADS / "mtp",
    "draft_model": DRAFT,
}

Create = Callable[..., LLM]


def config(**settings: Any) -> EngineConfig:
    return EngineConfig.from_keywords(model="quire-tiny", **settings)


def methods(settings: EngineConfig) -> list[str]:
    return [method.method for method in settings.speculative.methods()]


@pytest.mark.parametrize("method", MODELS)
def test_the_tensors_say_which(create_llm: Create, method: str) -> None:
    asked = {"model": str(MODELS[method]), "num_speculative_tokens": 3}
    llm = create_llm(ASSETS / "quire-tiny", speculative_config=asked)
    llm.generate(["Once upon a time"])
    assert f'spec_decode_num_drafts{{method="{method}"}}' in llm.engine.stats()
    (made,) = infer_methods(config(speculative_config=asked)).speculative.methods()
    assert (made.method, made.num_speculative_tokens, made.is_inferred) == (method, 3, False)


def test_short_forms_lists_and_names(gguf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf)
    assert methods(infer_methods(config(spec_model=str(HEADS / "eagle3")))) == ["eagle3"]
    assert methods(infer_methods(config(spec_model=str(path)))) == ["draft_model"]
    assert methods(infer_methods(config(spec_model="quire-tiny-draft"))) == ["draft_model"]
    assert methods(infer_methods(config(speculative_model="[ngram]"))) == ["ngram"]
    several = [{"model": str(HEADS / "mtp")}, {"method": "ngram"}, {"model": str(DRAFT)}]
    found = infer_methods(config(speculative_config=several))
    assert methods(found) == ["mtp", "ngram", "draft_model"]
    assert infer_methods(found) == found
    plain = config()
    assert infer_methods(plain) == plain


def test_the_layouts_of_others(tmp_path: Path) -> None:
    folder = write_head(tmp_path / "medusa", medusa_tensors(256))
    assert methods(infer_methods(config(spec_model=str(folder)))) == ["medusa"]


def test_a_named_method_stays(quire_log: list[logging.LogRecord]) -> None:
    asked = {"method": "draft_model", "model": str(HEADS / "eagle")}
    assert methods(infer_methods(config(speculative_config=asked))) == ["draft_model"]
    assert not [r for r in quire_log if "by its tensors" in r.getMessage()]


def test_memory_is_that_of_the_head() -> None:
    machine = read_machine()
    alone = memory_needs(config(), machine)
    inferred = memory_needs(config(spec_model=str(HEADS / "eagle3")), machine)
    named = memory_needs(config(spec_method="eagle3", spec_model=str(HEADS / "eagle3")), machine)
    assert inferred == named and inferred.least > alone.least


def test_what_cannot_be_is_refused(create_llm: Create, tmp_path: Path) -> None:
    drafts = [{"model": str(DRAFT)}, {"model": str(ASSETS / "quire-tiny")}]
    with pytest.raises(ConfigError, match="each method once; got draft_model twice"):
        create_llm(ASSETS / "quire-tiny", speculative_config=drafts)
    twice = [{"model": str(HEADS / "eagle")}, {"method": "eagle"}]
    with pytest.raises(ConfigError, match="each method once; got eagle twice"):
        create_llm(ASSETS / "quire-tiny", speculative_config=twice)
    asked = {"model": str(HEADS / "eagle"), "vocabulary": "text"}
    with pytest.raises(ConfigError, match='"vocabulary" must be left out of method eagle'):
        create_llm(ASSETS / "quire-tiny", speculative_config=asked)
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match="must name a drafter that can be loaded; got "):
        create_llm(ASSETS / "quire-tiny", speculative_config={"model": str(tmp_path)})

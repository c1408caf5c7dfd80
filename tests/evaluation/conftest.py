"""quire-tiny's held-out text in its own tokens, cut into windows."""

from pathlib import Path

import pytest

from quire.evaluation.local_model import LocalModel
from quire.evaluation.windows import Cut
from quire.settings.config import EngineConfig
from quire.store.hub import resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def folder() -> Path:
    return resolve_model("quire-tiny")


@pytest.fixture(scope="session")
def tokenizer(folder):
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def ids(folder, tokenizer):
    return tokenizer.encode((folder / "eval" / "heldout.txt").read_text())


@pytest.fixture(scope="session")
def windows(ids):
    """Ten windows of 64 tokens, the last one shorter."""
    return Cut(64).windows([ids[:600]])


@pytest.fixture(scope="session")
def load(folder):
    """Return a function that loads quire-tiny for windows of 64 tokens, with settings."""

    def load(**settings):
        config = EngineConfig.from_keywords(threads=1, **settings)
        return LocalModel(folder, config, 64)

    return load


@pytest.fixture(scope="session")
def model(load):
    return load(dtype="float32")

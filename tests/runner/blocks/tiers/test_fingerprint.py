"""What keeps KV blocks of one model, in files and stores, apart from another's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.runner.blocks.tiers.fingerprint import (
    local_fingerprint,
    quick_fingerprint,
    settings_of,
    shared_fingerprint,
)
from quire.settings.config import EngineConfig
from tests.engine.conftest import model_config

KERNELS = {"linear": "fma, 256 bits (measured: 3 GFLOP/s)", "cache": "float32"}


def settings(kernels: dict[str, str] = KERNELS, block_size: int = 16, **options: Any) -> str:
    config = EngineConfig.from_keywords(model="any", **options)
    resolved: Any = SimpleNamespace(config=config, max_model_len=2048)
    model = model_config()
    spec = KVCacheSpec(2, 1, 1, block_size, "float32")
    cache: Any = SimpleNamespace(spec=spec, block_bytes=spec.block_bytes)
    return settings_of(model, resolved, cache, kernels)


def test_other_kernels_other_blocks_or_other_weights_are_other_content():
    assert settings() == settings()
    others = [
        settings(KERNELS | {"linear": "fma, 512 bits"}),
        settings(block_size=32),
        settings(quantization="int4"),
    ]
    assert len({settings(), *others}) == 4


def test_what_was_measured_to_choose_kernels_changes_nothing():
    assert settings() == settings(KERNELS | {"linear": "fma, 256 bits (measured: 4 GFLOP/s)"})


def test_all_fingerprints_tell_settings_apart(checkpoint):
    path: Path = checkpoint()
    for name in (local_fingerprint, quick_fingerprint, shared_fingerprint):
        assert name(path, "a") == name(path, "a") != name(path, "b")

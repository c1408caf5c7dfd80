"""Layouts of draft heads: which method they are for, and options that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from quire.core.errors import ModelLoadError  # noqa: E402
from quire.models.decoder import Decoder  # noqa: E402
from quire.models.draft_heads.find_method import find_method  # noqa: E402
from quire.models.draft_heads.head_tensors import HeadTensors  # noqa: E402
from quire.runner.memory.loaded_heads import RECURRENT  # noqa: E402
from quire.training.target import HeadVocabulary  # noqa: E402
from tests.published_heads import KINDS, write_head  # noqa: E402


@pytest.mark.parametrize("kind", KINDS)
def test_the_tensors_say_which_method(
    kind: str, vocabulary: HeadVocabulary, tmp_path: Path
) -> None:
    write_head(kind, vocabulary, tmp_path, 3)
    assert find_method(tmp_path) == kind.partition("-")[0]


SURPLUS = "must be those of its configuration; got .*"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle-hass", {"fusion_bias": False}, rf"{SURPLUS}surplus fusion_fc\.bias"),
        ("eagle-speculators", {"fusion_bias": True}, rf"{SURPLUS}missing fusion_fc\.bias"),
        ("eagle-norms", {"layernorms": False}, rf"{SURPLUS}surplus embedding_layernorm\.weight"),
        (
            "eagle-speculators",
            {"transformer_layer_architecture": "GraniteDecoderLayer"},
            "transformer_layer_architecture must be auto or one of LlamaDecoderLayer, .*; got 'Gr",
        ),
        (
            "mtp-speculators",
            {"transformer_layer_config": {"model_type": "qwen3_next"}},
            "the model_type of transformer_layer_config must be one of llama, .*; got 'qwen3_next'",
        ),
        (
            "eagle-speculators",
            {"transformer_layer_config": {"layer_types": ["sliding_attention"]}},
            "layer_types of transformer_layer_config must begin with full_attention; got ",
        ),
        (
            "eagle-speculators",
            {"transformer_layer_config": 1},
            "transformer_layer_config must be an object",
        ),
    ],
    ids=str,
)
def test_what_would_be_computed_otherwise_is_refused(
    kind: str,
    changes: dict[str, Any],
    message: str,
    target: Decoder,
    vocabulary: HeadVocabulary,
    tmp_path: Path,
) -> None:
    write_head(kind, vocabulary, tmp_path, 3)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8"))
    for name, value in changes.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(config), "utf-8")
    read, _ = RECURRENT[kind.partition("-")[0]]
    with pytest.raises(ModelLoadError, match=message):
        read(HeadTensors(tmp_path), target.config)

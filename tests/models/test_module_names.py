"""Adapters are found by their modules' names, whichever version of a library gave them."""

from __future__ import annotations

import pytest

from quire.models.adapters.module_names import ModuleNames


@pytest.mark.parametrize(
    ("adapter", "module", "fits"),
    [
        ("model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj", True),
        # transformers 4.52 put the decoder of models that read pictures elsewhere.
        ("model.language_model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj", True),
        ("language_model.model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj", True),
        ("model.language_model.layers.1.mlp.up_proj", "model.layers.0.mlp.up_proj", False),
        ("model.vision_tower.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj", False),
        ("model.visual.blocks.0.mlp.up_proj", "model.layers.0.mlp.up_proj", False),
    ],
)  # fmt: skip
def test_a_module_is_found_by_its_name(adapter: str, module: str, fits: bool) -> None:
    assert ModuleNames([adapter]).find(module) == (adapter if fits else None)

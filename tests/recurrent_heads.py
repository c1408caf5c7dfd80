"""Random heads that draft token after token, as the training code writes them; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.training.draft_layer import LayerShape
from quire.training.eagle import EagleHead
from quire.training.eagle3 import Eagle3Head
from quire.training.head_files import save_head
from quire.training.mtp import MTPHead
from quire.training.target import HeadVocabulary

LAYERS = (0, 1, 2)


def read_vocabulary(folder: Path) -> HeadVocabulary:
    """Return what heads share with the checkpoint in a folder."""
    file = SafetensorsFile(folder / "model.safetensors")
    names = ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
    return HeadVocabulary(*(torch.tensor(file.tensor(name).float32()) for name in names))


def write_random_head(kind: str, vocabulary: HeadVocabulary, path: Path, num_layers: int) -> Path:
    """Write a head of random weights.

    Args:
        kind: ``eagle``, ``eagle3``, ``eagle3-draft-vocabulary`` or ``mtp``.
        vocabulary: The target's.
        path: The folder.
        num_layers: Of the target.
    """
    torch.manual_seed(9)
    size, width = vocabulary.embedding.shape
    shape = LayerShape(width, 48, 4, 2, 16)
    some = torch.arange(0, size, 3)
    heads: dict[str, Callable[[], Any]] = {
        "eagle": lambda: EagleHead(shape, vocabulary),
        "eagle3": lambda: Eagle3Head(shape, vocabulary, LAYERS),
        "eagle3-draft-vocabulary": lambda: Eagle3Head(shape, vocabulary, LAYERS, some),
        "mtp": lambda: MTPHead(shape, vocabulary, num_layers),
    }
    head = heads[kind]()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    save_head(head, path, "target", 512)
    return path

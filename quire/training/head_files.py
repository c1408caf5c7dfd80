"""Heads as folders in the published layouts: ``config.json`` and safetensors.

Embeddings and output head are the target's and not repeated, but for a head's own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.core.errors import ModelLoadError
from quire.training.draft_layer import LayerShape
from quire.training.eagle import EagleHead
from quire.training.eagle3 import Eagle3Head
from quire.training.medusa import TrainableMedusaHeads
from quire.training.mtp import MTPHead
from quire.training.recurrent_head import TrainableRecurrentHead
from quire.training.target import HeadVocabulary

MEDUSA_FILE, WEIGHTS_FILE = "medusa_lm_head.safetensors", "model.safetensors"
Head = TrainableRecurrentHead | TrainableMedusaHeads


def save_head(head: Head, folder: Path, base_model: str, max_position_embeddings: int) -> None:
    """Write a head, its matrices as bfloat16.

    Args:
        head: A head of any kind.
        folder: The folder, which is made if it is not there.
        base_model: The target's name, for people.
        max_position_embeddings: The target's longest context.
    """
    config = head.settings() | {
        "base_model_name_or_path": base_model,
        "torch_dtype": "bfloat16",
    }
    if isinstance(head, TrainableRecurrentHead):
        config = {
            **asdict(head.shape),
            "num_hidden_layers": 1,
            "vocab_size": len(head.vocabulary.embedding),
            "max_position_embeddings": max_position_embeddings,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            **config,
        }
    tensors = {
        _published_name(head, name): tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in head.published().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / _file_of(head))


def load_head(folder: Path, vocabulary: HeadVocabulary) -> Head:
    """Read a head in any of the published layouts, as float32.

    Those are FasterDecoding's of Medusa, SafeAILab's of EAGLE and EAGLE-3, that of ``speculators``
    for EAGLE-3, and DeepSeek's of an MTP module.

    Raises:
        ModelLoadError: Files are missing, or tensors do not fit their configuration.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        paths = sorted(folder.glob("*.safetensors"))
        stored = {name: tensor for path in paths for name, tensor in load_file(path).items()}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"[head] {folder} must hold a draft head; got {error}.") from None
    embedding = stored.pop("embed_tokens.weight", None)
    if embedding is not None:
        vocabulary = HeadVocabulary(embedding.float(), vocabulary.head, vocabulary.norm)
    head = _create(config, stored, vocabulary)
    tensors = {_module_name(head, name): tensor for name, tensor in stored.items()}
    try:
        head.load_state_dict({name: _exact(tensor) for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise ModelLoadError(
            f"[head] the tensors in {folder} must be those of its configuration; got {error}."
        ) from None
    return head


def _create(config: dict[str, Any], stored: dict[str, Tensor], vocabulary: HeadVocabulary) -> Head:
    if "medusa_num_heads" in config:
        num_heads, num_layers = config["medusa_num_heads"], config["medusa_num_layers"]
        own_head = f"0.{num_layers}.weight" in stored
        return TrainableMedusaHeads(vocabulary, num_heads, num_layers, own_head)
    layer = config | config.get("transformer_layer_config", {})
    layer.setdefault("head_dim", layer["hidden_size"] // layer["num_attention_heads"])
    layer.setdefault("num_key_value_heads", layer["num_attention_heads"])
    names = [field.name for field in fields(LayerShape)]
    shape = LayerShape(**{name: layer[name] for name in names if name in layer})
    if "num_nextn_predict_layers" in config:
        return MTPHead(shape, vocabulary, config["num_hidden_layers"])
    if stored["fc.weight"].shape[1] == 2 * shape.hidden_size:
        return EagleHead(shape, vocabulary)
    layers = config.get("eagle_aux_hidden_state_layer_ids") or (
        config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", ())
    )
    draft_ids = None
    if "d2t" in stored:
        draft_ids = stored["d2t"] + torch.arange(len(stored["d2t"]))
    return Eagle3Head(shape, vocabulary, layers, draft_ids, "lm_head.weight" in stored)


def _published_name(head: Head, name: str) -> str:
    return name if isinstance(head, TrainableMedusaHeads) else head.tensor_prefix() + name


def _module_name(head: Head, name: str) -> str:
    if isinstance(head, TrainableMedusaHeads):
        return f"heads.{name}"
    if isinstance(head, Eagle3Head):
        return name.replace("layers.0.", "midlayer.")
    return name.removeprefix(head.tensor_prefix())


def _file_of(head: Head) -> str:
    return MEDUSA_FILE if isinstance(head, TrainableMedusaHeads) else WEIGHTS_FILE


def _exact(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor

"""Random heads in all layouts that are read, each with its definition in torch; needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quire.training.draft_layer import Drafts, LayerShape, RMSNorm
from quire.training.eagle import EagleHead
from quire.training.head_files import load_head
from quire.training.mtp import MTPHead
from quire.training.recurrent_head import RecurrentHead
from quire.training.target import Vocabulary
from tests.recurrent_heads import write_random_head

KINDS = [
    "eagle", "eagle-speculators", "eagle-hass", "eagle-norms", "eagle3", "eagle3-draft-vocabulary",
    "mtp", "mtp-qwen", "mtp-speculators",
]  # fmt: skip

#: What the layouts of MTP modules call their parts, ahead of those of their layer.
MTP_NAMES = {
    "mtp-qwen": {
        "eh_proj": "mtp.fc",
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "shared_head.norm": "mtp.norm",
        "": "mtp.layers.0.",
    },
    "mtp-speculators": {
        "eh_proj": "mtp_layers.0.input_proj",
        "enorm": "mtp_layers.0.token_layernorm",
        "hnorm": "mtp_layers.0.hidden_layernorm",
        "shared_head.norm": "mtp_layers.0.final_layernorm",
        "": "mtp_layers.0.",
    },
}


class NormedHeads(nn.Linear):
    """Queries or keys, each of whose heads has the norm of Qwen3."""

    def __init__(self, shape: LayerShape, num_heads: int) -> None:
        super().__init__(shape.hidden_size, num_heads * shape.head_dim, bias=False)
        self.norm = RMSNorm(LayerShape(shape.head_dim, 0, 1, 1, shape.head_dim))
        self.head_dim = shape.head_dim

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).view(*x.shape[:-1], -1, self.head_dim)
        normed: Tensor = self.norm(heads)
        return normed.flatten(-2)


class QwenModule(MTPHead):
    """What goes from one draft to the next is past the last norm."""

    def __init__(self, shape: LayerShape, vocabulary: Vocabulary, num_layers: int) -> None:
        super().__init__(shape, vocabulary, num_layers)
        self.self_attn.q_proj = NormedHeads(shape, shape.num_attention_heads)
        self.self_attn.k_proj = NormedHeads(shape, shape.num_key_value_heads)

    def mix(self, features: Any, embeds: Any, drafts: Drafts) -> Tensor:
        normed: Tensor = self.shared_head.norm(super().mix(features, embeds, drafts))
        return normed

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs @ self.vocabulary.head.T

    def named_as(self, names: Mapping[str, str]) -> dict[str, Tensor]:
        """Return the weights by the names of a layout."""
        tensors = {}
        for name, parameter in self.named_parameters():
            module = name.removesuffix(".weight").replace("_proj.norm", "_norm")
            tensors[f"{names.get(module, names[''] + module)}.weight"] = parameter.data
        return tensors


class BiasedEagle(EagleHead):
    """HASS: a bias on the mix; with ``norms`` three further ones."""

    def __init__(self, shape: LayerShape, vocabulary: Vocabulary, norms: bool) -> None:
        super().__init__(shape, vocabulary)
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=True)
        self.embedding_layernorm, self.input_layernorm, self.pre_lm_head_layernorm = (
            RMSNorm(shape) if norms else nn.Identity() for _ in range(3)
        )

    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        layer = self.layers[0]
        x = self.fc(torch.cat([self.embedding_layernorm(embeds), features], dim=-1))
        x = drafts.rows(x) + layer.self_attn(self.input_layernorm(x), drafts)
        out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        normed: Tensor = self.pre_lm_head_layernorm(outputs)
        return normed @ self.vocabulary.head.T


def write_head(kind: str, vocabulary: Vocabulary, path: Path, num_layers: int) -> RecurrentHead:
    """Write a head of random weights; return the same head.

    Args:
        kind: Of :data:`KINDS`.
        vocabulary: The target's.
        path: The folder.
        num_layers: Of the target.
    """
    torch.manual_seed(9)
    shape = LayerShape(vocabulary.embedding.shape[1], 48, 4, 2, 16)
    head: RecurrentHead
    config: dict[str, Any]
    if kind in MTP_NAMES:
        head = QwenModule(shape, vocabulary, num_layers)
    elif kind in ("eagle-speculators", "eagle-hass", "eagle-norms"):
        is_plain, norms = kind == "eagle-speculators", kind == "eagle-norms"
        head = EagleHead(shape, vocabulary) if is_plain else BiasedEagle(shape, vocabulary, norms)
    else:
        read = load_head(write_random_head(kind, vocabulary, path, num_layers), vocabulary)
        assert isinstance(read, RecurrentHead), kind
        return read
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    if isinstance(head, QwenModule):
        tensors = head.named_as(MTP_NAMES[kind])
        config = asdict(shape)
        if kind == "mtp-speculators":
            config = speculators_config("mtp", config | {"model_type": "qwen3"})
    else:
        tensors = {
            name.replace("fc.", "fusion_fc.")
            .replace("layers.0.", "transformer.")
            .replace("input_layernorm", "transformer.input_layernorm"): tensor
            for name, tensor in head.state_dict().items()
        }
        options = {"layernorms": kind == "eagle-norms", "fusion_bias": kind != "eagle-speculators"}
        layer = asdict(shape) | {"model_type": "llama"}
        config = speculators_config("eagle", layer, **options)
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    return head


def speculators_config(method: str, layer: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Return a ``config.json`` as ``speculators`` writes it."""
    return {
        "speculators_model_type": method,
        "speculators_version": "0.4.0",
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": dict(layer),
        **options,
    }

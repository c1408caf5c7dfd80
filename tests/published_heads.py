"""Random heads in all layouts that are read, each with its definition in torch; needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from quire.training.draft_layer import Drafts, LayerShape, TrainableRMSNorm
from quire.training.eagle import EagleHead, EagleLayer
from quire.training.eagle3 import Eagle3Head
from quire.training.head_files import load_head
from quire.training.mtp import MTPHead
from quire.training.recurrent_head import TrainableRecurrentHead
from quire.training.target import HeadVocabulary
from tests.recurrent_heads import LAYERS, write_random_head
from tests.training.oracle import draft_greedily

KINDS = [
    "eagle", "eagle-speculators", "eagle-hass", "eagle-norms", "eagle3", "eagle3-draft-vocabulary",
    "eagle3-norms", "eagle3-layers", "eagle3-parallel", "eagle3-parallel-layers", "mtp", "mtp-qwen",
    "mtp-speculators",
]  # fmt: skip
PARALLEL_KINDS = [kind for kind in KINDS if "parallel" in kind]
MASK_ID = 7
#: Options of EAGLE-3 heads in ``speculators``.
EAGLE3_OPTIONS: dict[str, dict[str, Any]] = {
    "eagle3-norms": {"norm_before_fc": True, "norm_output": True},
    "eagle3-layers": {"fc_norm": True, "norm_before_residual": True},
    "eagle3-parallel": {"norm_before_fc": False},
    "eagle3-parallel-layers": {"fc_norm": True, "norm_output": True},
}

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
        self.norm = TrainableRMSNorm(LayerShape(shape.head_dim, 0, 1, 1, shape.head_dim))
        self.head_dim = shape.head_dim

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).view(*x.shape[:-1], -1, self.head_dim)
        normed: Tensor = self.norm(heads)
        return normed.flatten(-2)


class QwenModule(MTPHead):
    """What goes from one draft to the next is past the last norm."""

    def __init__(self, shape: LayerShape, vocabulary: HeadVocabulary, num_layers: int) -> None:
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

    def __init__(self, shape: LayerShape, vocabulary: HeadVocabulary, norms: bool) -> None:
        super().__init__(shape, vocabulary)
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=True)
        self.embedding_layernorm, self.input_layernorm, self.pre_lm_head_layernorm = (
            TrainableRMSNorm(shape) if norms else nn.Identity() for _ in range(3)
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


class DeepLayer(EagleLayer):
    """A layer after the first."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.input_layernorm = TrainableRMSNorm(shape)

    def forward(self, x: Tensor, drafts: Drafts) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), drafts)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DeepEagle3(Eagle3Head):
    """EAGLE-3 with any number of layers, the options of ``speculators``, and perhaps a mask."""

    def __init__(self, kind: str, shape: LayerShape, vocabulary: HeadVocabulary) -> None:
        own = HeadVocabulary(vocabulary.embedding * 1.1, vocabulary.head, vocabulary.norm)
        some = torch.arange(0, len(own.head), 3) if "layers" in kind else None
        super().__init__(shape, own if "parallel" in kind else vocabulary, LAYERS, some)
        self.options = EAGLE3_OPTIONS[kind]
        width = len(LAYERS) * shape.hidden_size
        number = 2 if "layers" in kind else 0
        self.further = nn.ModuleList([DeepLayer(shape) for _ in range(number)])
        if self.options.get("norm_before_fc"):
            self.input_norm = TrainableRMSNorm(replace(shape, hidden_size=width))
        if self.options.get("fc_norm"):
            self.fc_norm = nn.ModuleList([TrainableRMSNorm(shape) for _ in LAYERS])
        if "parallel" in kind:
            self.mask_hidden = nn.Parameter(torch.randn(1, 1, width))

    def features(self, states: Tensor) -> Tensor:
        captured = states[..., self.shape.hidden_size :]
        if self.options.get("norm_before_fc"):
            captured = self.input_norm(captured)
        if self.options.get("fc_norm"):
            parts = captured.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            captured = torch.cat(normed, dim=-1)
        out: Tensor = self.fc(captured)
        return out

    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        layer, normed = self.midlayer, self.midlayer.hidden_norm(features)
        wide = torch.cat([layer.input_layernorm(embeds), normed], dim=-1)
        x = normed if self.options.get("norm_before_residual") else features
        x = drafts.rows(x) + layer.self_attn(wide, drafts)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        for following in self.further:
            x = following(x, Drafts(drafts.starts))
        return self.norm(x) if self.options.get("norm_output") else x

    def logits(self, outputs: Tensor) -> Tensor:
        normed = outputs if self.options.get("norm_output") else self.norm(outputs)
        if self.lm_head is None:
            return normed @ self.vocabulary.head.T
        drafted: Tensor = self.lm_head(normed)
        shape = *drafted.shape[:-1], len(self.vocabulary.head)
        return drafted.new_full(shape, -torch.inf).index_copy(-1, self.draft_ids, drafted)

    def stored(self) -> dict[str, Tensor]:
        """Return the weights by their published names."""
        found = {}
        for name, tensor in self.state_dict().items():
            first, _, rest = name.partition(".")
            if first == "further":
                number, _, rest = rest.partition(".")
                name = f"layers.{int(number) + 1}.{rest}"
            found[name.replace("midlayer.", "layers.0.")] = tensor
        if hasattr(self, "mask_hidden"):
            found["embed_tokens.weight"] = self.vocabulary.embedding
        return found


@torch.no_grad()
def parallel_logits(head: DeepEagle3, ids: Tensor, states: Tensor, num_tokens: int) -> Tensor:
    """Return the logits (num_tokens, V) of a draft at once, as ``draft_logits`` those of others."""
    num_masks = num_tokens - 1
    masks = functional.pad(head.mask_hidden[0], (head.shape.hidden_size, 0))
    features = head.features(torch.cat([states, masks.expand(num_masks, -1)]))
    features = torch.cat([torch.zeros_like(features[:1]), features])
    ids = torch.cat([ids, torch.full((num_masks,), MASK_ID)])
    outputs = head.mix(features[None], head.embed(ids)[None], Drafts(torch.arange(len(ids))[None]))
    return head.logits(outputs[0, -num_tokens:])


def draft(head: TrainableRecurrentHead, ids: Tensor, states: Tensor, num_tokens: int) -> list[int]:
    """Return the greedy draft of a head that drafts in either way."""
    if not hasattr(head, "mask_hidden"):
        return draft_greedily(head, ids, states, num_tokens)
    assert isinstance(head, DeepEagle3), head
    tokens: list[int] = parallel_logits(head, ids, states, num_tokens).argmax(-1).tolist()
    return tokens


def write_head(
    kind: str, vocabulary: HeadVocabulary, path: Path, num_layers: int
) -> TrainableRecurrentHead:
    """Write a head of random weights; return the same head.

    Args:
        kind: Of :data:`KINDS`.
        vocabulary: The target's.
        path: The folder.
        num_layers: Of the target.
    """
    torch.manual_seed(9)
    shape = LayerShape(vocabulary.embedding.shape[1], 48, 4, 2, 16)
    head: TrainableRecurrentHead
    if kind in MTP_NAMES:
        head = QwenModule(shape, vocabulary, num_layers)
    elif kind in EAGLE3_OPTIONS:
        head = DeepEagle3(kind, shape, vocabulary)
    elif kind == "eagle-speculators":
        head = EagleHead(shape, vocabulary)
    elif kind in ("eagle-hass", "eagle-norms"):
        head = BiasedEagle(shape, vocabulary, kind == "eagle-norms")
    else:
        read = load_head(write_random_head(kind, vocabulary, path, num_layers), vocabulary)
        assert isinstance(read, TrainableRecurrentHead), kind
        return read
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    config, tensors = _published(kind, head)
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    return head


def _published(kind: str, head: TrainableRecurrentHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return ``config.json`` and tensors of a head."""
    layer = asdict(head.shape)
    if isinstance(head, QwenModule):
        config = speculators_config("mtp", layer | {"model_type": "qwen3"})
        return (layer if kind == "mtp-qwen" else config), head.named_as(MTP_NAMES[kind])
    if isinstance(head, DeepEagle3):
        options = {"eagle_aux_hidden_state_layer_ids": list(LAYERS), **head.options}
        if kind == "eagle3-parallel":  # as vLLM reads it
            return layer | options | {"ptd_token_id": MASK_ID}, head.stored()
        method = "peagle" if hasattr(head, "mask_hidden") else "eagle3"
        options["mask_token_id"] = MASK_ID
        return speculators_config(method, layer, **options), head.stored()
    tensors = {
        name.replace("fc.", "fusion_fc.")
        .replace("layers.0.", "transformer.")
        .replace("input_layernorm", "transformer.input_layernorm"): tensor
        for name, tensor in head.state_dict().items()
    }
    options = {"layernorms": kind == "eagle-norms", "fusion_bias": kind != "eagle-speculators"}
    return speculators_config("eagle", layer | {"model_type": "llama"}, **options), tensors


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

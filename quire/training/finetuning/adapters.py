"""Adapters of low rank on a frozen base, by peft; the loop is elsewhere."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path

import peft
import torch

from quire.training.finetuning.causal_model import find_linears
from quire.training.finetuning.finetuning_plan import FinetuningPlan
from quire.training.finetuning.frozen_linear import FrozenLinear


class AdaptedModel:
    """A model whose matrices are held in NF4, with an adapter on each.

    Args:
        model: The model, which is changed in place.
        modules: The checkpoint's names of the matrices.
        plan: Rank, scale and seed of the adapters.

    Attributes:
        model: The adapted model.
        base_hash: SHA-256 of everything that is not an adapter, before training.

    Raises:
        UnsupportedArchitectureError: A matrix is not a linear of its own.
        ModelLoadError: A weight is infinite or NaN.
    """

    def __init__(
        self, model: torch.nn.Module, modules: Sequence[str], plan: FinetuningPlan
    ) -> None:
        places = list(find_linears(model, modules).values())
        device = next(model.parameters()).device
        for place in places:
            linear = model.get_submodule(place)
            assert isinstance(linear, torch.nn.Linear)
            model.set_submodule(place, FrozenLinear(place, linear).to(device))
        config = peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=plan.rank,
            lora_alpha=plan.alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules=_shortest(places),
        )
        torch.manual_seed(plan.seed)
        with warnings.catch_warnings():
            # peft asks transformers for what it will rename.
            warnings.simplefilter("ignore", FutureWarning)
            self.model: torch.nn.Module = peft.get_peft_model(model, config)
        self.base_hash = self.hash_base()

    def hash_base(self) -> str:
        """Return the SHA-256 of what is not trained: names and bytes of its tensors."""
        digest = hashlib.sha256()
        tensors = dict(self.model.named_buffers())
        tensors |= {n: p for n, p in self.model.named_parameters() if not p.requires_grad}
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def save(self, out: Path, source: str) -> None:
        """Write ``adapter_config.json`` and ``adapter_model.safetensors``.

        Args:
            out: A folder, made if it is not there.
            source: The base, as the files shall name it.
        """
        self.model.peft_config["default"].base_model_name_or_path = source  # type: ignore[index,union-attr]
        # The vocabulary is the source's; peft would look for its size under the name.
        self.model.save_pretrained(out, save_embedding_layers=False)  # type: ignore[operator]


def _shortest(places: Sequence[str]) -> list[str]:
    """Return the last parts of names, which is what peft looks for."""
    return sorted({place.rpartition(".")[2] for place in places})

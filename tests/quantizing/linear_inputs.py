"""The oracle of calibration: a checkpoint in transformers, and what its linears are given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quire.quantizing.inputs import calibration
from tests.lazy_packages import lazy_package

transformers = lazy_package("transformers")


def calibration_samples(folder: Path, options: Sequence[str]) -> list[np.ndarray]:
    """Return the samples that the command takes with options, a flag and its value each."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    count, length = int(given.pop("--samples")), int(given.pop("--sample-length"))
    text = Path(given.pop("--calibration")) if "--calibration" in given else None
    assert not given
    asked = calibration.Calibration(text=text, count=count, length=length)
    return calibration.calibration_samples(folder, asked, lambda notice: None)[0]


@functools.cache
def _read_model(folder: Path) -> Any:
    """Return a checkpoint's model, which no test changes."""
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


class LinearInputs:
    """A checkpoint of floats whose weights can be exchanged."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._model = copy.deepcopy(_read_model(folder))
        self._parameters = dict(self._model.named_parameters())

    def weight(self, name: str) -> np.ndarray:
        """Return a matrix (N, K)."""
        return self._parameters[name].detach().numpy().copy()

    def replace(self, name: str, values: torch.Tensor) -> None:
        """Exchange a matrix."""
        self._parameters[name].data.copy_(values)

    def of(self, prefix: str, samples: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs (T, K) float64 of all linears whose names begin so."""
        seen: dict[str, list[np.ndarray]] = {}

        def watch(name: str) -> Any:
            return lambda module, given: seen.setdefault(name, []).append(_rows(given[0]))

        hooks = [
            module.register_forward_pre_hook(watch(name))
            for name, module in self._model.named_modules()
            if name.startswith(prefix) and isinstance(module, torch.nn.Linear)
        ]
        self._run(samples)
        for hook in hooks:
            hook.remove()
        return {name: np.concatenate(parts) for name, parts in seen.items()}

    def of_head(self, samples: Sequence[np.ndarray]) -> np.ndarray:
        """Return the inputs (T, D) float64 of the output head."""
        seen: list[np.ndarray] = []
        hook = self._model.model.norm.register_forward_hook(
            lambda module, given, made: seen.append(_rows(made))
        )
        self._run(samples)
        hook.remove()
        return np.concatenate(seen)

    def of_expert(self, layer: int, expert: int, samples: Sequence[np.ndarray]) -> np.ndarray:
        """Return the inputs (R, D) float64 of an expert of Mixtral."""
        block = self._model.model.layers[layer].mlp
        seen: list[np.ndarray] = []

        def watch(module: Any, given: Any) -> None:
            rows = _rows(given[0])
            logits = rows @ block.gate.weight.detach().double().numpy().T
            chosen = np.argsort(-logits, axis=1)[:, : self._model.config.num_experts_per_tok]
            seen.append(rows[(chosen == expert).any(axis=1)])

        hook = block.register_forward_pre_hook(watch)
        self._run(samples)
        hook.remove()
        return np.concatenate(seen)

    @torch.no_grad()
    def _run(self, samples: Sequence[np.ndarray]) -> None:
        for sample in samples:
            self._model.model(torch.from_numpy(sample.astype(np.int64))[None], use_cache=False)


def _rows(states: torch.Tensor) -> np.ndarray:
    return states.detach().double().reshape(-1, states.shape[-1]).numpy().copy()

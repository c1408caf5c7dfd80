"""The oracle of integration tests: transformers in float32, without a cache."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.lazy_packages import lazy_package

transformers = lazy_package("transformers")


class ReferenceModel:
    """A checkpoint as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        transformers.logging.disable_progress_bar()
        (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
        self._model = (
            getattr(transformers, architecture)
            .from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            .eval()
        )

    @torch.no_grad()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """Return (T, V) log-probabilities of the token after each position."""
        logits = self._model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return torch.log_softmax(logits.double(), dim=-1)

    def greedy(self, token_ids: list[int], answer: list[int]) -> list[int]:
        """Return the most likely token at each position of an answer, after those before it.

        It is the greedy answer if it is the same: its first token is, so its second one is.
        """
        best = self.logprobs([*token_ids, *answer[:-1]]).argmax(dim=-1)
        found: list[int] = best[len(token_ids) - 1 :].tolist()
        return found

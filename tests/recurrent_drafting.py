"""A proposer of one head over a small token table, with its definition in torch; needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.models.decoder import Decoder
from quire.models.draft_heads.head_tensors import HeadBuilder, HeadTensors
from quire.runner.memory.loaded_heads import RECURRENT
from quire.speculative.drafters.parallel import ParallelProposer
from quire.speculative.drafters.recurrent import RecurrentProposer
from quire.speculative.drafters.target_states import ComputedStates
from quire.training.recurrent_head import TrainableRecurrentHead
from tests.kernels.sampling_cases import batch
from tests.published_heads import draft
from tools.random_checkpoint import PRESETS

CONFIG = PRESETS["tiny-llama"]
BLOCK = 8


class Drafting:
    """A proposer with the oracle next to it.

    ``states`` (T, S) are random: of the final norm, then those of the layers.

    Args:
        method: Of the head.
        folder: Holds it.
        target: Drafted for.
        oracle: What the head is, in torch.
        has_rules: Draws are such that no backend may do them by itself.
    """

    def __init__(
        self,
        method: str,
        folder: Path,
        target: Decoder,
        oracle: TrainableRecurrentHead,
        *,
        has_rules: bool = False,
    ) -> None:
        tensors = HeadTensors(folder)
        read, load = RECURRENT[method]
        shape = read(tensors, target.config)
        self.head = load(shape, HeadBuilder(tensors, target.backend, "float32"), target, 512)
        self.oracle = oracle
        self.draw = Greedy(has_rules)
        self.backend = target.backend
        self.width = target.config.hidden_size
        config = self.head.config
        spec = KVCacheSpec(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=BLOCK,
            dtype="float32",
        )
        self.table = TokenTable(4, 64)
        cache = self.backend.kv_cache(spec, 128)
        kind = RecurrentProposer if self.head.mask is None else ParallelProposer
        self.proposer = kind(self.table, self.head, cache, 512)

    def begin(self, name: str, tokens: np.ndarray, first_block: int, num_tokens: int) -> int:
        row = self.table.add(name, tokens[:num_tokens].tolist(), num_tokens)
        self.table.append_blocks(row, list(range(first_block, first_block + 20)))
        self.table.reserve(np.array([row], np.int32), np.array([64], np.int32))
        self.proposer.begin(row, ())
        return row

    def observe(self, parts: dict[int, tuple[np.ndarray, int, int]]) -> None:
        """Tell states ``start`` to ``stop`` of some rows in one step."""
        own = slice(self.width, None) if self.head.layers else slice(0, self.width)
        states = np.concatenate([s[start:stop, own] for s, start, stop in parts.values()])
        starts, stops = (np.array([p[i] for p in parts.values()], np.int32) for i in (1, 2))
        rows = np.array(list(parts), np.int32)
        told = self.backend.from_numpy(np.ascontiguousarray(states))
        self.proposer.observe(ComputedStates(rows, starts, stops - starts, told))

    def propose(self, rows: list[int], most: list[int]) -> list[list[int]]:
        asked, limits = np.array(rows, np.int32), np.array(most, np.int32)
        counts = self.proposer.propose(asked, limits, self.draw)
        known = self.table.num_tokens[rows]
        return [
            self.table.token_ids[row, start : start + count].tolist()
            for row, start, count in zip(rows, known, counts, strict=True)
        ]

    def expected(self, tokens: np.ndarray, states: np.ndarray, count: int) -> list[int]:
        ids, rows = torch.tensor(tokens).long(), torch.tensor(states[: len(tokens) - 1])
        return draft(self.oracle, ids, rows, count)


class Greedy:
    """Takes the likeliest token; see :class:`quire.speculative.proposer.ChainDraw`."""

    def __init__(self, has_rules: bool) -> None:
        self._has_rules = has_rules

    def __call__(self, logits: Any, rows: IntArray, lengths: IntArray) -> IntArray:
        tokens: IntArray = np.asarray(logits).argmax(-1).astype(np.int32)
        return tokens

    def plain(self, rows: IntArray, lengths: IntArray) -> SamplingBatch | None:
        return None if self._has_rules else batch(len(rows), temperature=0.0)


def sequence(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (count,) and states (count, S) for the target of :data:`CONFIG`."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((count, 4 * CONFIG["hidden_size"])).astype(np.float32)
    return rng.integers(0, CONFIG["vocab_size"], count).astype(np.int32), states

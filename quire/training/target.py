"""The model that heads are trained for, as the engine computes it: hidden states and vocabulary.

T tokens, C captured layers, D model dim, V vocabulary. No definition of the target in torch is
needed, so whatever the engine loads can have heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.registry import create_backend
from quire.layers.residual_capture import ResidualCapture
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import map_weights, open_tensors
from quire.models.loader import load_model

BLOCK_SIZE = 16
#: Tokens of one step of the engine, as long as no sequence is longer.
STEP_TOKENS = 4096


def default_layers(num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose entry EAGLE-3 reads: low, middle, high.

    Those of the published heads, 2, L / 2 and L - 3, and evenly spread ones where these coincide.
    """
    layers = (2, num_layers // 2, num_layers - 3)
    if layers[0] < layers[1] < layers[2]:
        return layers
    if num_layers < 3:
        raise ConfigError(
            f"[train-heads] eagle3 needs a model of at least 3 layers; got {num_layers}. "
            "Train another kind of head."
        )
    return (min(1, num_layers - 3), num_layers // 2, num_layers - 1)


class HeadVocabulary:
    """The matrices that heads share with their target.

    Attributes:
        embedding: (V, D) float32.
        head: (V, D) float32; the same tensor where the target ties them.
        norm: (D,) float32, the weight of the norm before the head: where heads begin with theirs.
    """

    def __init__(self, embedding: torch.Tensor, head: torch.Tensor, norm: torch.Tensor) -> None:
        self.embedding, self.head, self.norm = embedding, head, norm


def load_vocabulary(path: Path) -> HeadVocabulary:
    """Read embedding, output head and last norm of a checkpoint, a folder or a GGUF file."""
    config = read_model_config(path)
    source = open_tensors(path, config)
    weights = map_weights(source, config)
    norm = source.tensor(f"{weights.final_norm().module}.weight")
    tables = [weights.embedding(), weights.head()][: 1 if config.tie_word_embeddings else 2]
    embedding, *rest, last_norm = (
        torch.from_numpy(tensor.float32().copy())
        for tensor in (*(source.tensor(f"{table.modules[0]}.weight") for table in tables), norm)
    )
    return HeadVocabulary(embedding, rest[0] if rest else embedding, last_norm)


class TrainingTarget:
    """A checkpoint loaded on the CPU backend, for hidden states.

    Args:
        path: A folder or a GGUF file.
        layers: Layers whose entering residual stream is wanted too, ascending; may be empty.
        max_model_len: Longest sequence.
        threads: Compute threads.

    Attributes:
        config: The model's architecture.
    """

    def __init__(self, path: Path, layers: Sequence[int], max_model_len: int, threads: int) -> None:
        self._backend = create_backend("cpu", threads=threads)
        self._decoder = load_model(path, self._backend, max_model_len=max_model_len)
        self.config: ModelConfig = self._decoder.config
        self._capture = None
        if layers:
            self._capture = ResidualCapture(
                self._backend, layers, self.config.hidden_size, self.config.num_layers
            )
        self._max_blocks = _blocks(max(STEP_TOKENS, max_model_len))
        # Block 0 is the null block.
        self._kv_cache = self._backend.kv_cache(self._kv_spec(), 1 + self._max_blocks)

    @property
    def width(self) -> int:
        """Columns of :meth:`states`, (1 + C) D."""
        captured = len(self._capture.layers) if self._capture is not None else 0
        return (1 + captured) * self.config.hidden_size

    def states(self, sequences: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield (T, (1 + C) D) float32 of each sequence of token ids, at least one each.

        The first D columns are what the final norm makes of each position, the others the residual
        stream that enters the captured layers.
        """
        batch: list[np.ndarray] = []
        num_blocks = 0
        for sequence in sequences:
            if batch and num_blocks + _blocks(len(sequence)) > self._max_blocks:
                yield from self._step(batch)
                batch, num_blocks = [], 0
            batch.append(sequence)
            num_blocks += _blocks(len(sequence))
        if batch:
            yield from self._step(batch)

    def _kv_spec(self) -> KVCacheSpec:
        return self.config.kv_cache_spec(BLOCK_SIZE, self.config.dtype)

    def _step(self, sequences: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Compute whole sequences together."""
        lengths = np.array([len(sequence) for sequence in sequences], np.int32)
        blocks = np.array([_blocks(len(sequence)) for sequence in sequences])
        tables = np.zeros((len(sequences), int(blocks.max())), np.int32)
        first = 1 + np.concatenate([[0], np.cumsum(blocks)[:-1]])
        for row, (start, count) in enumerate(zip(first, blocks, strict=True)):
            tables[row, :count] = np.arange(start, start + count)
        positions = np.concatenate([np.arange(length) for length in lengths])
        slots = np.repeat(first * BLOCK_SIZE, lengths) + positions
        ends = np.cumsum(lengths)
        batch = ForwardBatch(
            input_ids=np.concatenate(sequences).astype(np.int32),
            positions=positions.astype(np.int32),
            slot_mapping=slots.astype(np.int64),
            block_tables=tables,
            query_start_loc=np.concatenate([[0], ends]).astype(np.int32),
            seq_lens=lengths,
            logits_indices=np.arange(ends[-1], dtype=np.int32),
        )
        hidden = self._decoder.forward(batch, self._kv_cache, capture=self._capture)
        parts = [self._backend.to_numpy(hidden.states)]
        if self._capture is not None:
            parts.append(self._backend.to_numpy(self._capture.states))
        states = np.concatenate(parts, axis=1, dtype=np.float32)
        yield from np.split(states, ends[:-1])


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)

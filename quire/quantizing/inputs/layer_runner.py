"""One decoder layer at a time over all calibration samples: what goes in, and what comes out.

T tokens of all samples, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from quire.checkpoints.matrix_rows import Tensor
from quire.checkpoints.tensor_source import TensorSource
from quire.kernels.backend import Backend
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.workspace import Workspace
from quire.models.arranged_tensors import ChangedTensors
from quire.models.model_builder import ModelBuilder
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.models.shared_weights import SharedWeights
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantizing.inputs.observed_backend import ObservedBackend, Observer

BLOCK_SIZE = 32
#: Tokens that are computed together; a longer sample is alone.
STEP_TOKENS = 2048


class ReplacedTensors(ChangedTensors):
    """A checkpoint some of whose tensors have other values.

    Args:
        stored: The checkpoint.
        replaced: Float32 values by name.
    """

    def __init__(self, stored: TensorSource, replaced: Mapping[str, np.ndarray]) -> None:
        super().__init__(stored)
        self._replaced = replaced

    def tensor(self, name: str) -> Tensor:
        """Return the other values, or a view of what is stored."""
        other = self._replaced.get(name)
        return self._stored.tensor(name) if other is None else HostTensor(name, "float32", other)


class LayerRunner:
    """Computes layers of a checkpoint of floats, each sample by itself.

    Args:
        opened: The checkpoint, held as float32, with at least the longest sample's context.
        backend: The backend that computes; activations are float32 numpy arrays.
        samples: Token ids, (length,) int32 each.
    """

    def __init__(
        self, opened: OpenedCheckpoint, backend: Backend, samples: Sequence[np.ndarray]
    ) -> None:
        self._opened, self._backend = opened, backend
        self._batches = [_batch(step) for step in _steps(samples)]
        self.num_tokens = sum(map(len, samples))
        self._token_ids = np.concatenate(samples)
        config = opened.config
        longest = max(len(batch.input_ids) for batch in self._batches)
        blocks = max(int(batch.block_tables.max()) for batch in self._batches) + 1
        spec = replace(config.kv_cache_spec(BLOCK_SIZE, "float32"), num_layers=1)
        self._kv_cache = backend.kv_cache(spec, blocks)
        self._workspace = Workspace(backend, config, longest)
        builder = self._builder(backend, {})
        self._ropes = builder.ropes(config, opened.max_model_len)

    def embed(self, states: np.ndarray) -> None:
        """Write the samples' embeddings to ``states`` (T, D) float32."""
        name = f"{self._opened.weights.names.embedding}.weight"
        table = self._opened.tensors.tensor(name)
        assert isinstance(table, HostTensor), table
        for begin in range(0, len(states), STEP_TOKENS):
            ids = self._token_ids[begin : begin + STEP_TOKENS]
            states[begin : begin + STEP_TOKENS] = replace(table, array=table.array[ids]).float32()
        if self._opened.config.embedding_scale != 1:
            states *= np.float32(self._opened.config.embedding_scale)
        self._opened.tensors.release(name)

    def run(
        self,
        layer: int,
        states: np.ndarray,
        replaced: Mapping[str, np.ndarray],
        observer: Observer | None = None,
        *,
        keep: bool = True,
        feeds: bool = True,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Compute a layer, or, after the last, the output head's inputs.

        Args:
            layer: Index of the layer; the number of layers for the head, of which nothing is kept.
            states: (T, D) float32, the layer's inputs.
            replaced: Values that tensors of the layer have instead of the checkpoint's.
            observer: A function that sees the inputs of all linears.
            keep: Whether to write the layer's outputs to ``states``.
            feeds: Whether to continue after attention has mixed the rows.
            on_tokens: A function called with the tokens of each step.
        """
        if layer == self._opened.config.num_layers:
            self._observe_head(states, observer, on_tokens)
            return
        backend: Backend = ObservedBackend(self._backend, observer, self._unread(layer, keep))
        builder = self._builder(backend, replaced)
        config = self._opened.config
        first_norm = builder.norm(self._opened.weights.attention_norm(layer))
        made = builder.layer(config, layer, self._ropes)
        begin = 0
        for batch in self._batches:
            rows = slice(begin, begin + len(batch.input_ids))
            begin = rows.stop
            plans = [made.mixing.attention.plan(batch, self._kv_cache)]
            step = self._workspace.all_rows(batch, plans)
            step.residual[:] = states[rows]
            first_norm(step.residual, step.normed)
            made.attend(step)
            if feeds:
                made.feed(step)
            if keep:
                states[rows] = step.residual
            on_tokens(len(batch.input_ids))

    def _observe_head(
        self, states: np.ndarray, observer: Observer | None, on_tokens: Callable[[int], None]
    ) -> None:
        weights = self._opened.weights
        norm = self._builder(self._backend, {}).norm(weights.final_norm())
        for begin in range(0, len(states), STEP_TOKENS):
            rows = np.array(states[begin : begin + STEP_TOKENS])
            norm(rows, rows)
            if observer is not None:
                observer(weights.own_head().modules, rows)
            on_tokens(len(rows))

    def _unread(self, layer: int, keep: bool) -> set[tuple[str, ...]]:
        """Return the linears whose products only the layer's end has."""
        weights = self._opened.weights
        return set() if keep else {mlp.down.modules for mlp in weights.mlps(layer)}

    def _builder(self, backend: Backend, replaced: Mapping[str, np.ndarray]) -> ModelBuilder:
        tensors = ReplacedTensors(self._opened.tensors, replaced)
        opened = replace(self._opened, tensors=tensors)
        return ModelBuilder(backend, opened, QuantizationPlan(), None, None, SharedWeights())


def _steps(samples: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    steps: list[list[np.ndarray]] = []
    room = 0
    for sample in samples:
        if not steps or len(sample) > room:
            steps.append([])
            room = max(STEP_TOKENS, len(sample))
        steps[-1].append(sample)
        room -= len(sample)
    return steps


def _batch(samples: Sequence[np.ndarray]) -> ForwardBatch:
    """Return the arrays of samples that are computed together, each in blocks of its own."""
    lengths = np.array([len(sample) for sample in samples], np.int32)
    blocks = -(-lengths // BLOCK_SIZE)
    firsts = 1 + np.cumsum(blocks) - blocks
    tables = np.zeros((len(samples), int(blocks.max())), np.int32)
    for row, (first, count) in enumerate(zip(firsts, blocks, strict=True)):
        tables[row, :count] = np.arange(first, first + count)
    positions = np.concatenate([np.arange(length) for length in lengths])
    return ForwardBatch(
        input_ids=np.concatenate(samples).astype(np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=np.repeat(firsts * BLOCK_SIZE, lengths).astype(np.int64) + positions,
        block_tables=tables,
        query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        seq_lens=lengths,
        logits_indices=np.empty(0, np.int32),
    )

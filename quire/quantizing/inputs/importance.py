"""Importance of each input of a model's matrices: its mean square over some text.

T tokens of all samples, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.gguf.importance_matrix import ImportanceEntry
from quire.core.errors import ConfigError
from quire.kernels.backend import Backend
from quire.models.gguf.gguf_export import tensor_names
from quire.models.loader import open_generating
from quire.models.opened_checkpoint import OpenedCheckpoint
from quire.quantizing.inputs.input_sums import sum_of_squares
from quire.quantizing.inputs.layer_inputs import Bar
from quire.quantizing.inputs.layer_runner import LayerRunner
from quire.quantizing.inputs.statistics import Statistics, source_state
from quire.quantizing.quantization_run import layer_linears


class _Squares:
    """Sums of squares of the inputs of modules."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}

    def add(self, modules: tuple[str, ...], inputs: np.ndarray) -> None:
        """Count inputs (T, K) of a linear."""
        self.put(modules, sum_of_squares(inputs), len(inputs))

    def put(self, modules: tuple[str, ...], squares: np.ndarray, count: int) -> None:
        """Count sums of squares (K,) of a number of inputs."""
        for module in modules:
            self.sums[module] = self.sums.get(module, 0) + squares
            self.counts[module] = self.counts.get(module, 0) + count


def collect_importance(
    folder: Path,
    samples: Sequence[np.ndarray],
    backend: Backend,
    bar: Bar,
    statistics: Path | None = None,
) -> dict[str, ImportanceEntry]:
    """Compute a model layer by layer, as float32, and sum the squares of all linears' inputs.

    Args:
        folder: A checkpoint of floats.
        samples: Token ids, (length,) int32 each.
        backend: The backend that computes.
        bar: The progress bar.
        statistics: A folder of sums, as in :class:`~quire.quantizing.inputs.statistics.Statistics`;
            None to keep none.

    Returns:
        Entries by the names of tensors in a GGUF file; the head and the embedding have none.

    Raises:
        ConfigError: The checkpoint is quantized already.
        ModelLoadError: The checkpoint cannot be read.
    """
    opened = open_generating(folder, "float32", max(map(len, samples)))
    if not isinstance(opened.tensors, Checkpoint):
        raise ConfigError(f"[imatrix] MODEL must be safetensors of floats; got {folder}.")
    if statistics is not None:
        kept = Statistics(statistics, source_state(opened.tensors), samples)
        return _entries(folder, _kept_squares(opened, kept, backend, bar))
    runner = LayerRunner(opened, backend, samples)
    states = np.empty((runner.num_tokens, opened.config.hidden_size), np.float32)
    runner.embed(states)
    squares = _Squares()
    layers = opened.config.num_layers
    with bar("imatrix", layers * runner.num_tokens) as advance:
        for layer in range(layers):
            remark = f"layer {layer + 1} of {layers}"
            runner.run(
                layer,
                states,
                {},
                squares.add,
                on_tokens=partial(_show, advance, remark),
            )
    return _entries(folder, squares)


def _kept_squares(
    opened: OpenedCheckpoint, kept: Statistics, backend: Backend, bar: Bar
) -> _Squares:
    layers = range(opened.config.num_layers)
    linears = [layer_linears(opened.weights, layer) for layer in layers]
    kept.collect(opened, backend, linears, bar)
    squares = _Squares()
    for layer in layers:
        sums = kept.sums(layer, linears[layer], {}, lambda share: None)
        for modules, found in sums.squares.items():
            squares.put(modules, found, sums.num_rows[modules])
    return squares


def _show(advance: Callable[[float, str], None], remark: str, count: int) -> None:
    advance(count, remark)


def _entries(folder: Path, squares: _Squares) -> dict[str, ImportanceEntry]:
    """Put experts of a tensor together; those that saw nothing have a count of 0."""
    made = {}
    for name, sources in tensor_names(folder).items():
        modules = [source.removesuffix(".weight") for source in sources]
        seen = [module for module in modules if module in squares.sums]
        if not seen:
            continue
        nothing = np.zeros_like(squares.sums[seen[0]])
        made[name] = ImportanceEntry(
            np.stack([squares.sums.get(module, nothing) for module in modules]).astype(np.float32),
            np.array([squares.counts.get(module, 0) for module in modules], np.float32),
        )
    return made

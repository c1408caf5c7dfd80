"""A checkpoint in this process that scores windows; logits exist for a few rows at a time.

L rows, V vocabulary, C columns of a measure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.evaluation.distributions import compare_rows, loss_rows
from quire.evaluation.window_steps import (
    WindowPiece,
    create_batch,
    most_blocks,
    plan_steps,
    targets,
)
from quire.evaluation.windows import Window
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_generating_config
from quire.models.decoder import HiddenStates
from quire.models.model_builder import Progress
from quire.runner.memory.loaded_model import expected_demand, load
from quire.settings.config import EngineConfig
from quire.settings.resolve import resolve
from quire.system.machine import read_machine

log = logging.getLogger(__name__)

#: Logits of one model that exist at once.
LOGITS_BYTES = 16 * 2**20
#: Called with the tokens of each window when they are done.
OnTokens = Callable[[int], None]


class LocalModel:
    """A loaded model with KV for one step's windows.

    Args:
        folder: A folder or a GGUF file.
        config: Settings by which the model is held and computed; requests' settings have no meaning
            here.
        longest: Tokens of the longest window that it will be asked to score.
        on_progress: A function called while weights load, with bytes done and bytes in all.
        num_sequences: Number of sequences of ``longest`` tokens for which there is KV, where the
            caller makes steps of its own.

    Attributes:
        decoder: The model's own decoder.
        vocab_size: V.
        dtype, kv_cache_dtype: Element types as they were chosen.
        quantization: Format that the model's weights were rounded to, or None.
        weight_bytes: Memory of the weights.
        step_tokens: Most tokens of a step.
        block_size: Tokens of a block of KV.
        max_model_len: Tokens of the longest sequence that it can compute.

    Raises:
        ConfigError: The model does not fit this machine, or the settings do not fit the model.
        ModelLoadError: The checkpoint cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        config: EngineConfig,
        longest: int,
        on_progress: Progress | None = None,
        num_sequences: int = 1,
    ) -> None:
        machine, model_config = read_machine(), read_generating_config(folder)
        resolved = resolve(config, machine, model_config)
        for line in resolved.notices:
            log.warning("%s", line)
        self.quantization = resolved.config.model.quantization
        self._backend = create_backend(resolved.device, threads=resolved.threads)
        self.step_tokens = step_tokens = config.scheduler.max_num_batched_tokens
        demand = expected_demand(folder, self._backend, model_config, resolved)
        # Whole windows are kept, also where a model sees only the last tokens.
        spec = replace(demand.spec, window=None)
        own_blocks = 1 + num_sequences * -(-longest // spec.block_size)
        num_blocks = max(most_blocks(longest, step_tokens, spec.block_size), own_blocks)
        kv_bytes = num_blocks * spec.block_bytes
        if demand.fixed_bytes + kv_bytes > machine.free_bytes:
            raise ConfigError(
                f"[eval] {folder.name} must fit in {format_bytes(machine.free_bytes)} of free "
                f"memory; it needs {format_bytes(demand.fixed_bytes)}, and "
                f"{format_bytes(kv_bytes)} for KV. Lower --window or --max-num-batched-tokens."
            )
        loaded = load(folder, self._backend, resolved, on_progress=on_progress)
        self.decoder = loaded.decoder
        self.vocab_size = loaded.config.vocab_size
        self.dtype, self.kv_cache_dtype = loaded.config.dtype, resolved.kv_cache_dtype
        self.weight_bytes = loaded.decoder.weight_bytes
        self.block_size, self.max_model_len = spec.block_size, resolved.max_model_len
        self.decoder.reserve(step_tokens, _logits_rows(self.vocab_size))
        self._kv_cache = self._backend.kv_cache(spec, num_blocks)

    def losses(self, windows: Sequence[Window], on_tokens: OnTokens) -> Iterator[np.ndarray]:
        """Yield the losses of each window's counted tokens, (count,) float64 nats, in order."""
        for table in _measure([self], windows, on_tokens):
            yield table[:, 0]

    def compare(
        self, reference: LocalModel, windows: Sequence[Window], on_tokens: OnTokens
    ) -> Iterator[np.ndarray]:
        """Yield for each window the columns of :func:`compare_rows`, (count, 4), in order.

        Both models compute a step, then their logits of the same few rows.
        """
        return _measure([self, reference], windows, on_tokens)

    @property
    def kernel_names(self) -> dict[str, str]:
        """See :class:`~quire.kernels.backend.Backend`."""
        return self._backend.kernel_names()

    def forward(self, batch: ForwardBatch) -> HiddenStates:
        """Compute a step; the states are the decoder's until the next one."""
        return self.decoder.forward(self._backend.upload(batch), self._kv_cache)

    def logits(self, hidden: HiddenStates) -> np.ndarray:
        """Return (L, V) float32 that the next call overwrites."""
        found: np.ndarray = self._backend.to_numpy(self.decoder.logits(hidden))
        return found


def _measure(
    models: Sequence[LocalModel], windows: Sequence[Window], on_tokens: OnTokens
) -> Iterator[np.ndarray]:
    """Yield (count, C) of each window: the losses of one model, or two models compared."""
    parts: list[np.ndarray] = []
    for step in plan_steps(windows, models[0].step_tokens, models[0].block_size):
        table = _measure_step(models, step)
        on_tokens(sum(piece.end - piece.begin for piece in step))
        ends = np.cumsum([len(piece.rows) for piece in step])
        for piece, part in zip(step, np.split(table, ends[:-1]), strict=True):
            parts.append(part)
            if piece.end == len(piece.window.token_ids):
                yield np.concatenate(parts)
                parts = []


def _measure_step(models: Sequence[LocalModel], step: Sequence[WindowPiece]) -> np.ndarray:
    model, *reference = models
    batch = create_batch(step, model.block_size)
    hidden = [each.forward(batch) for each in models]
    wanted, size = targets(step), _logits_rows(model.vocab_size)
    found = [np.empty((0, 4 if reference else 1))]
    for begin in range(0, len(wanted), size):
        rows = slice(begin, begin + size)
        logits = model.logits(hidden[0][rows])
        if reference:
            other = reference[0].logits(hidden[1][rows])
            found.append(compare_rows(logits, other, wanted[rows]))
        else:
            found.append(loss_rows(logits, wanted[rows]))
    return np.concatenate(found)


def _logits_rows(vocab_size: int) -> int:
    """Return the rows of logits that exist at once."""
    return max(1, LOGITS_BYTES // (4 * vocab_size))

"""Several steps of a draft head as one native call, out of the calls that one step made."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quire.kernels.attention import refuse_batch
from quire.kernels.backend import ChainShape, ChainStart, Forward
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.cpu.native import native


class CpuDraftChain:
    """See ``kernels/backend.py``; made by :func:`record_chain`.

    Args:
        forward: The head's forward, whose native calls are recorded, with arrays that it uses every
            time.
        shape: The shape of the chain.
    """

    def __init__(self, forward: Forward, shape: ChainShape) -> None:
        rows = shape.num_rows
        numbers = np.arange(rows + 1, dtype=np.int32)
        self.outputs = np.zeros((rows, shape.size), np.float32)
        self._block_size = shape.block_size
        # Nothing is stored: the slots lie nowhere.
        self._batch = batch = ForwardBatch(
            input_ids=np.zeros(rows, np.int32),
            positions=np.zeros(rows, np.int32),
            slot_mapping=np.full(rows, -1, np.int64),
            block_tables=np.zeros((rows, shape.max_blocks), np.int32),
            query_start_loc=numbers,
            seq_lens=np.ones(rows, np.int32),
            logits_indices=numbers[:-1],
        )
        self._recording: Any = native.Recording()
        self._recording.start()
        try:
            outputs, self._logits = forward(batch, self.outputs)
            native.gather_rows(outputs, rows, batch.logits_indices, rows, shape.size, self.outputs)
        finally:
            self._recording.stop()

    def repeats(self, forward: Forward) -> bool:
        """Say whether the recorded calls do what ``forward`` does with other tokens, places and
        features."""
        batch = self._batch
        batch.input_ids[:] = batch.positions[:] = 1
        batch.seq_lens[:] = 2
        features = np.linspace(-1, 1, self.outputs.size, dtype=np.float32)
        self.outputs[:] = features.reshape(self.outputs.shape)
        outputs, logits = forward(batch, self.outputs.copy())
        expected = outputs.tobytes(), logits.tobytes()
        outputs[:], logits[:] = 0, 0
        self._recording.replay()
        return expected == (self.outputs.tobytes(), self._logits.tobytes())

    def run(self, start: ChainStart, sampling: SamplingBatch, steps: int) -> npt.NDArray[np.int32]:
        """Take up to ``steps`` steps; see the protocol."""
        own, (rows, width) = self._batch, start.block_tables.shape
        own.input_ids[:] = start.input_ids
        own.positions[:] = start.positions
        own.seq_lens[:] = start.seq_lens
        own.block_tables[:, :width] = start.block_tables
        self.outputs[:] = start.features
        tokens = np.empty((steps, rows), np.int32)
        taken: int = native.draft_chain(
            self._recording,
            steps,
            rows,
            own.block_tables.shape[1],
            self._block_size,
            own.input_ids,
            own.positions,
            own.slot_mapping,
            own.block_tables,
            own.seq_lens,
            self._logits,
            self._logits.shape[1],
            sampling,
            tokens,
        )
        if taken < 0:
            raise refuse_batch()
        return tokens[:taken]


def record_chain(forward: Forward, shape: ChainShape) -> CpuDraftChain | None:
    """Return the chain; None where not all that ``forward`` does are calls that can be recorded."""
    chain = CpuDraftChain(forward, shape)
    return chain if chain.repeats(forward) else None

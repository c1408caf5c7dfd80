"""Steps of a loaded model that are timed: a prompt, and a token of each of several sequences.

B sequences, n tokens of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from quire.evaluation.local_model import LocalModel
from quire.kernels.batch.forward_batch import ForwardBatch

#: Of the tokens' ids, which are drawn alike for every model.
SEED = 1


def random_tokens(num_sequences: int, length: int, vocab_size: int) -> np.ndarray:
    """Return (B, length) int32 ids of a vocabulary; the same for the same arguments."""
    generator = np.random.default_rng(SEED)
    return generator.integers(0, vocab_size, (num_sequences, length), dtype=np.int32)


def create_step(
    token_ids: np.ndarray, begin: int, end: int, block_size: int, first: int = 0
) -> ForwardBatch:
    """Return the step that computes tokens ``begin`` to ``end`` of every sequence.

    Args:
        token_ids: (B, length) int32. Each sequence has blocks of its own for all of its length.
        begin, end: Range of each sequence's tokens; the tokens before it are in the KV cache.
        block_size: Tokens of a block.
        first: Number of sequences whose blocks lie before the blocks of these.

    Returns:
        A step whose logits are those of each sequence's last token.
    """
    num_sequences, length = token_ids.shape
    per_sequence = -(-length // block_size)
    numbers = np.arange(first, first + num_sequences, dtype=np.int32)
    tables = 1 + numbers[:, None] * per_sequence + np.arange(per_sequence, dtype=np.int32)
    positions = np.arange(begin, end, dtype=np.int32)
    slots = tables[:, positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    count = end - begin
    return ForwardBatch(
        input_ids=np.ascontiguousarray(token_ids[:, begin:end]).reshape(-1),
        positions=np.tile(positions, num_sequences),
        slot_mapping=slots.reshape(-1),
        block_tables=np.ascontiguousarray(tables, np.int32),
        query_start_loc=np.arange(0, num_sequences * count + 1, count, dtype=np.int32),
        seq_lens=np.full(num_sequences, end, np.int32),
        logits_indices=np.arange(count - 1, num_sequences * count, count, dtype=np.int32),
    )


class TimedSteps:
    """The steps of one model.

    Args:
        model: A model with KV for the largest batch.
        batches: Sequences of the steps that decode.
        prompt_len: Tokens of a prompt, which every sequence begins with.
        output_len: Steps that decode before they begin anew.
    """

    def __init__(
        self, model: LocalModel, batches: Sequence[int], prompt_len: int, output_len: int
    ) -> None:
        self._model = model
        length, size = prompt_len + output_len, model.block_size
        ids = random_tokens(max(batches), length, model.vocab_size)
        for number, row in enumerate(ids):
            self._compute([create_step(row[None], 0, prompt_len, size, number)])
        self._prompt = [create_step(ids[:1], 0, prompt_len, size)]
        self._decoding = {
            batch: [
                create_step(ids[:batch], place, place + 1, size)
                for place in range(prompt_len, length)
            ]
            for batch in batches
        }
        self._num_tokens = {"prompt": prompt_len} | {str(b): b * output_len for b in batches}

    def rate(
        self, name: str, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> float:
        """Return tokens a second of a prompt's step, or of steps that decode.

        Args:
            name: ``prompt``, or the number of sequences.
            seconds: Time that must have passed before the last whole round of steps ends.
            clock: A function that returns the time in seconds.
        """
        steps = self._prompt if name == "prompt" else self._decoding[int(name)]
        passes, start = 0, clock()
        while True:
            self._compute(steps)
            passes += 1
            elapsed = clock() - start
            if elapsed >= seconds and elapsed > 0:
                return passes * self._num_tokens[name] / elapsed

    def _compute(self, steps: Sequence[ForwardBatch]) -> None:
        for step in steps:
            self._model.logits(self._model.forward(step))

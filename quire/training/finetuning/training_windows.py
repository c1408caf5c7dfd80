"""Windows of tokens to train on and to judge by, and which ones a step takes.

L tokens of a window, W windows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.errors import ConfigError

#: Of this many windows one is held out, and at most this many in all.
HELD_OUT_EVERY = 20
MAX_HELD_OUT = 64


class Windows:
    """Texts one after another, cut into windows of equal length.

    Args:
        texts: Tokens of each, as the model sees a text: with its start and its end.
        length: Tokens of a window.

    Attributes:
        training: (W, L) int64.
        held_out: The same, for the report; none where there are fewer than ``HELD_OUT_EVERY``.

    Raises:
        ConfigError: The texts have too few tokens for one window.
    """

    def __init__(self, texts: Sequence[Sequence[int]], length: int) -> None:
        stream = np.concatenate([np.asarray(text, np.int64) for text in texts])
        count = len(stream) // length
        if count == 0:
            raise ConfigError(
                f"[finetune] --data must hold at least {length} tokens, one window; got "
                f"{len(stream)}. Give more text, or a shorter --sequence-length."
            )
        whole = stream[: count * length].reshape(count, length)
        is_held_out = np.arange(count) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        is_held_out &= np.arange(count) < HELD_OUT_EVERY * MAX_HELD_OUT
        self.training, self.held_out = whole[~is_held_out], whole[is_held_out]

    def batch(self, step: int, size: int, seed: int) -> np.ndarray:
        """Return the windows of a step, (size, L): the same whichever steps were done before.

        Every window is taken once before any is taken again; the order is another each time.

        Args:
            step: Index of the step, from 0.
            size: Windows of a step; some of them are the same where there are fewer.
            seed: Seed of the order.
        """
        count = len(self.training)
        places = np.arange(step * size, (step + 1) * size)
        orders = {
            time: np.random.default_rng((seed, time)).permutation(count)
            for time in set((places // count).tolist())
        }
        chosen = [orders[place // count][place % count] for place in places.tolist()]
        batch: np.ndarray = self.training[chosen]
        return batch

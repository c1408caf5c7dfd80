"""Calibration samples: which pieces of texts are taken; tokens are made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.errors import ConfigError

#: Of the choice of samples.
SEED = 0


def choose_samples(
    texts: Sequence[Sequence[int]], count: int, length: int, start: Sequence[int] = ()
) -> list[np.ndarray]:
    """Return up to ``count`` pieces of texts, chosen at random but always the same.

    Texts shorter than a sample are put together, one after another; what is left over at the end
    of all texts is a shorter sample only where there is no other.

    Args:
        texts: Tokens of each, without ``start``.
        count: Most samples.
        length: Tokens of a sample.
        start: Tokens that each sample begins with, as every text of the model does.

    Returns:
        Token ids, (length,) int32 each.

    Raises:
        ConfigError: The texts are empty, or samples have no room for text.
    """
    room = length - len(start)
    if room < 1:
        raise ConfigError(
            f"[quantize] --sample-length must be over {len(start)}, the model's start of a text; "
            f"got {length}."
        )
    stream = np.concatenate(
        [np.asarray(text, np.int32) for text in texts] or [np.empty(0, np.int32)]
    )
    whole = len(stream) // room
    if whole == 0:
        if len(stream) < 2:
            raise ConfigError("[quantize] --calibration must hold text; got less than 2 tokens.")
        pieces = [stream]
    else:
        chosen = np.random.default_rng(SEED).permutation(whole)[:count]
        pieces = [stream[n * room : (n + 1) * room] for n in np.sort(chosen)]
    return [np.concatenate([start, piece]).astype(np.int32) for piece in pieces]

"""Rows of latent attention's matrices, by the head and the purpose that they are for.

N heads, r elements of a latent, R elements that turn; a head's key and value are made of latents.
"""

from __future__ import annotations

import numpy as np

from quire.core.model.model_config import ModelConfig


def neighbours_apart(config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return, of queries and of latents, which row each of ours is where neighbours turn.

    Ours turn (i, i + R/2); R elements are the last of each query and of the latents.
    """
    latent = config.latent
    assert latent is not None
    turned = np.arange(latent.rope_dim).reshape(-1, 2).T.reshape(-1)
    rows = np.arange(config.num_heads * config.head_dim).reshape(-1, config.head_dim)
    rows[:, latent.key_dim :] = rows[:, latent.key_dim :][:, turned]
    return rows.reshape(-1), np.concatenate([np.arange(latent.rank), latent.rank + turned])


def heads_apart(config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of all keys, and those of all values, of the matrix that makes both."""
    latent = config.latent
    assert latent is not None
    size = latent.key_dim + latent.value_dim
    rows = np.arange(config.num_heads * size).reshape(-1, size)
    return rows[:, : latent.key_dim].reshape(-1), rows[:, latent.key_dim :].reshape(-1)

"""The step's buffers: as many bytes as announced, and no overlap of what is alive together."""

import numpy as np
import pytest

from quire.core.model_config import ModelConfig, MoEConfig
from quire.kernels.registry import create_backend
from quire.layers.workspace import Workspace, workspace_bytes

SIZES = {
    "architecture": "test",
    "vocab_size": 7,
    "hidden_size": 12,
    "num_layers": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 5,
    "intermediate_size": 9,
    "max_position_embeddings": 8,
}
CONFIGS = {
    "gated": ModelConfig(**SIZES),
    "plain": ModelConfig(**SIZES, gated_mlp=False),
    "wide-mlp": ModelConfig(**SIZES | {"intermediate_size": 100}),
    "experts": ModelConfig(**SIZES, moe=MoEConfig(num_experts=3, top_k=2, intermediate_size=9)),
}


class CountingBackend:
    """A backend's allocator that remembers what it gave."""

    def __init__(self):
        self.backend = create_backend("reference", threads=1)
        self.given = []

    def empty(self, shape):
        self.given.append(self.backend.empty(shape))
        return self.given[-1]


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_allocates_the_bytes_it_says(config):
    backend = CountingBackend()
    Workspace(backend, config, 6)
    assert sum(array.nbytes for array in backend.given) == workspace_bytes(config, 6)


def test_views_are_made_once_and_keep_to_their_rows(config):
    workspace = Workspace(CountingBackend(), config, 6)
    rows = workspace.rows(4)
    assert workspace.rows(4) is rows
    assert rows.residual.shape == rows.normed.shape == rows.last_residual.shape == (4, 12)
    assert rows.qkv.shape == (4, 40)
    assert rows.attended.shape == rows.last_attended.shape == (4, 20)


def test_what_is_alive_together_shares_no_memory(config):
    workspace = Workspace(CountingBackend(), config, 6)
    rows, last = workspace.rows(6), workspace.rows(3)
    together = [
        (rows.residual, rows.normed, rows.qkv, rows.attended),
        (rows.residual, rows.normed, rows.up, rows.activated),
        (rows.residual, rows.normed, rows.routed, rows.mixed),
        (rows.residual, rows.attended, last.last_attended, last.last_residual),
        (last.last_attended, last.last_residual, last.normed),
        (last.last_residual, last.normed, last.up, last.activated),
        (last.last_residual, last.normed, last.routed, last.mixed),
    ]
    for group in together:
        arrays = [array.numpy() for array in group]
        for i, first in enumerate(arrays):
            assert not any(np.shares_memory(first, second) for second in arrays[i + 1 :])

"""The step's buffers: as many bytes as announced, and no overlap of what is alive together."""

import numpy as np
import pytest

from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.registry import create_backend
from quire.layers.workspace import MAX_KEPT_ROWS, Workspace, workspace_bytes

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
EXPERTS = {"num_experts": 3, "intermediate_size": 9, "routing": ExpertRouting(top_k=2)}
CONFIGS = {
    "gated": ModelConfig(**SIZES),
    "plain": ModelConfig(**SIZES, gated_mlp=False),
    "wide-mlp": ModelConfig(**SIZES | {"intermediate_size": 100}),
    "experts": ModelConfig(**SIZES, moe=MoEConfig(**EXPERTS)),
    "shared-experts": ModelConfig(**SIZES, moe=MoEConfig(**EXPERTS, shared_size=31)),
    "dense-layers": ModelConfig(
        **SIZES | {"intermediate_size": 100, "num_layers": 2},
        moe=MoEConfig(**EXPERTS, shared_size=5, dense_layers=(0,)),
    ),
}


class CountingBackend:
    """A backend's allocator that remembers what it gave."""

    def __init__(self):
        self.backend = create_backend("reference", threads=1)
        self.activation_dtype = "float32"
        self.given = []

    def empty(self, shape, dtype):
        self.given.append(self.backend.empty(shape, dtype))
        return self.given[-1]


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def test_allocates_the_bytes_it_says(config):
    backend = CountingBackend()
    Workspace(backend, config, 6)
    assert sum(array.nbytes for array in backend.given) == workspace_bytes(config, 6, "float32")


def step_of(num_tokens, num_wanted):
    """A batch of which the workspace asks the two lengths."""
    ids, wanted = np.zeros(num_tokens), np.arange(num_wanted)
    return ForwardBatch(ids, ids, ids, ids, ids, ids, logits_indices=wanted)


def test_views_are_made_once_and_keep_to_their_rows(config):
    workspace = Workspace(CountingBackend(), config, 6)
    batch = step_of(4, 4)
    step, wanted = workspace.all_rows(batch, ["plan"]), workspace.wanted_rows(batch)
    assert workspace.all_rows(batch, []).qkv is step.qkv
    assert workspace.wanted_rows(batch).residual is wanted.residual
    assert step.residual.shape == step.normed.shape == wanted.residual.shape == (4, 12)
    assert step.qkv.shape == (4, 40)
    assert step.attended.shape == wanted.attended.shape == (4, 20)
    assert step.plans == ["plan"]
    assert step.rows.batch is wanted.rows.batch is batch
    assert step.rows.indices is None
    assert wanted.rows.indices is batch.logits_indices


def test_views_of_long_steps_are_not_kept():
    """Prompts have thousands of lengths; a server would keep views of one more for hours."""
    workspace = Workspace(CountingBackend(), CONFIGS["gated"], MAX_KEPT_ROWS + 1)
    for num_rows, is_kept in ((MAX_KEPT_ROWS, True), (MAX_KEPT_ROWS + 1, False)):
        batch = step_of(num_rows, num_rows)
        for cut in (lambda b: workspace.all_rows(b, []), workspace.wanted_rows):
            step = cut(batch)
            assert (cut(batch).normed is step.normed) == is_kept
            assert cut(batch).normed.shape == step.normed.shape == (num_rows, 12)


def test_activations_have_the_type_of_the_backend(config):
    backend = CountingBackend()
    backend.activation_dtype = "float16"
    step = Workspace(backend, config, 6).all_rows(step_of(4, 0), [])
    assert {str(view.dtype) for view in (step.residual, step.qkv, step.up)} == {"torch.float16"}
    given = sum(array.nbytes for array in backend.given)
    assert (
        given == workspace_bytes(config, 6, "float16") == workspace_bytes(config, 6, "float32") / 2
    )


def test_what_is_alive_together_shares_no_memory(config):
    workspace = Workspace(CountingBackend(), config, 6)
    batch = step_of(6, 3)
    step, last = workspace.all_rows(batch, []), workspace.wanted_rows(batch)
    together = [
        (step.residual, step.normed, step.qkv, step.attended),
        (step.residual, step.normed, step.up, step.activated),
        (step.residual, step.normed, step.routed, step.mixed),
        (step.residual, step.normed, step.shared_up, step.shared_activated),
        (step.residual, step.normed, step.shared_activated, step.shared),
        (step.residual, step.normed, step.shared, step.mixed),
        (step.residual, step.attended, last.attended, last.residual),
        (last.attended, last.residual, last.normed),
        (last.residual, last.normed, last.up, last.activated),
        (last.residual, last.normed, last.routed, last.mixed),
        (last.residual, last.normed, last.shared, last.mixed),
    ]
    for group in together:
        arrays = [array.numpy() for array in group]
        for i, first in enumerate(arrays):
            assert not any(np.shares_memory(first, second) for second in arrays[i + 1 :])

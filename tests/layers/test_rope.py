"""RoPE tables against transformers' own frequencies, for every scaling type."""

import copy
import math

import numpy as np
import pytest

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import RopeConfig
from quire.layers.rope import rope_tables
from quire.models.config.rope_config import read_rope
from tests.lazy_packages import lazy_package

torch = pytest.importorskip("torch")
lazy_package("transformers")

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
CASES = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-attention-factor": YARN | {"attention_factor": 1.3},
    "yarn-beta": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
}


def read(values, head_dim):
    rope, context = read_rope(ConfigFields(values, "config.json"), head_dim)
    return rope, context


def oracle_tables(values, head_dim, num_positions):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    # transformers writes into the dicts it is given.
    values = copy.deepcopy(values)
    config = LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, **values
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(num_positions)[None])
    half = head_dim // 2
    return cos[0, :, :half].numpy(), sin[0, :, :half].numpy()


@pytest.mark.parametrize("head_dim", [64, 20])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", CASES)
def test_tables_match_transformers(name, theta, head_dim):
    base = {"max_position_embeddings": 2048}
    scaling = CASES[name]
    spellings = [base | {"rope_theta": theta, "rope_scaling": scaling}]
    if scaling:
        spellings.append(base | {"rope_parameters": scaling | {"rope_theta": theta}})
    want = oracle_tables(spellings[0], head_dim, 2048)
    for values in spellings:
        got = rope_tables(read(values, head_dim)[0], 2048)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.dtype == np.float32
            # One unit in the last place of a frequency, times the position.
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2048 * 1.2e-7)


def test_dynamic_scaling_is_of_the_whole_context():
    values = {
        "max_position_embeddings": 256,
        "rope_scaling": {"type": "dynamic", "factor": 4.0},
    }
    rope, context = read(values, 64)
    assert context == 1024
    want = oracle_tables(values | {"rope_theta": 10_000.0}, 64, 1024)
    np.testing.assert_allclose(rope_tables(rope, 1024)[0], want[0], rtol=0, atol=1.5e-4)
    unscaled = rope_tables(RopeConfig(theta=10_000.0, rotary_dim=64), 256)
    assert np.array_equal(rope_tables(rope, 256)[0], unscaled[0])


def test_partial_rotation_has_fewer_columns():
    values = {"max_position_embeddings": 64, "partial_rotary_factor": 0.5}
    rope, _ = read(values, 32)
    cos, sin = rope_tables(rope, 64)
    assert cos.shape == sin.shape == (64, 8)
    assert cos[3, 1] == pytest.approx(math.cos(3 * 10_000 ** (-2 / 16)), abs=1e-6)


def test_a_huge_dynamic_factor_keeps_frequencies_finite():
    """Within the original context nothing is stretched; a base of 0 came out of 1e17 once."""
    scaling = {"rope_type": "dynamic", "factor": 1e17, "original_max_position_embeddings": 8}
    rope = RopeConfig(theta=10_000.0, rotary_dim=16, scaling=scaling)
    plain = RopeConfig(theta=10_000.0, rotary_dim=16, scaling=None)
    for stretched, table in zip(rope_tables(rope, 8), rope_tables(plain, 8), strict=True):
        np.testing.assert_array_equal(stretched, table)
